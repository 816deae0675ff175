// SPDX-License-Identifier: Apache-2.0
/** Types of the test harness. */

import type { Activate, Execution, Json, Permission } from './index.js';

export interface HarnessOptions {
  name?: string;
  version?: string;
  permissions?: Permission[];
  config?: unknown;
  /** Values of secrets. Other names are denied. */
  secrets?: Record<string, string>;
  /** Contents of files by path. */
  files?: Record<string, string | Uint8Array>;
  /** Hosts, with their port if it is not 443, that `net.fetch` may reach. */
  net?: string[];
  /** Answers `net.fetch`. */
  fetch?: (request: { url: string; method?: string; headers?: Record<string, string> }) => {
    status?: number;
    headers?: Record<string, string>;
    body?: string | Uint8Array;
  };
  /** Patterns of events that the plugin may publish. Default: all. */
  publish?: string[];
  /** Answers `invoke`. */
  invoke?: (plugin: string, method: string, input: any) => unknown;
  /** Answers `sandbox.execute`. */
  execute?: (language: string, code: string) => Partial<Execution>;
}

export interface CallOptions {
  metadata?: Record<string, Json>;
  tenant?: string;
  requestId?: string;
  traceparent?: string;
  deadline?: string;
  /** Cancels the call. */
  signal?: AbortSignal;
  onItem?: (value: any) => void;
}

/** A host in memory that runs the methods of a plugin in this process. */
export class Harness {
  constructor(activate: Activate, options?: HarnessOptions);
  /** Runs the activation. The other methods do it if it has not happened. */
  start(): Promise<{ methods: string[] }>;
  call<T = any>(method: string, input?: unknown, options?: CallOptions): Promise<T>;
  /** Calls a method that streams. Returns its items and its result. */
  stream<T = any>(method: string, input?: unknown, options?: CallOptions): Promise<{ items: T[]; result: any }>;
  deliver(name: string, payload?: unknown): Promise<void>;
  fire(name: string, payload?: unknown): Promise<void>;
  /** Runs the shutdown handlers and removes temporary files. */
  stop(): Promise<void>;
  readonly kv: Map<string, { value: Json; version: number }>;
  readonly files: Map<string, Uint8Array>;
  readonly secrets: Map<string, string>;
  readonly published: { name: string; payload: Json }[];
  readonly timers: Map<string, { id: string; name: string; [option: string]: Json }>;
  readonly calendar: Map<string, any>;
  readonly artifacts: Map<string, any>;
  readonly logs: { level: string; message: string; fields: Record<string, Json> }[];
  readonly progress: Json[];
}
