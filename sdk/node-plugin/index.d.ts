// SPDX-License-Identifier: Apache-2.0
/** Types of the SDK for Cofferdam plugins. The names of results and options are those of the protocol. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** A number of milliseconds, or text such as `1.5s`, `5m` and `1h`. */
export type Duration = number | string;

/** A permission of the manifest. */
export type Permission =
  | 'net' | 'secrets.read' | 'secrets.write' | 'fs.read' | 'fs.write' | 'events.publish' | 'events.subscribe'
  | 'scheduler.create' | 'scheduler.cancel' | 'calendar.read' | 'calendar.write' | 'sandbox.execute'
  | 'artifacts.read' | 'artifacts.write' | 'invoke';

export interface MethodOptions {
  /** The maximum time of a call, with its repetitions. The call then ends with `TimeoutError`. */
  timeout?: Duration;
  /** The maximum number of repetitions after an error. Default: 0. */
  retry?: number;
  /** The permissions that the plugin must have for the method. */
  permission?: Permission | Permission[];
}

export type Method<Input = any, Output = any> = (
  input: Input,
  ctx: Context,
) => Output | Promise<Output> | AsyncGenerator<unknown, Output, void>;

export interface Kv {
  get<T = Json>(key: string): Promise<{ value: T | null; version: number }>;
  set(key: string, value: unknown, options?: { ifVersion?: number; ttl?: string }): Promise<{ version: number }>;
  delete(key: string, options?: { ifVersion?: number }): Promise<{ deleted: boolean }>;
  list(options?: { prefix?: string; after?: string; limit?: number }): Promise<{ keys: string[]; more: boolean }>;
}

export interface FileEntry {
  name: string;
  kind: string;
  size: number;
}

export interface Files {
  read(path: string, options?: { offset?: number; length?: number }): Promise<{ content: Uint8Array; size: number }>;
  readText(path: string): Promise<string>;
  stat(path: string): Promise<{ kind: string; size: number; modified: string }>;
  list(path: string): Promise<{ entries: FileEntry[] }>;
  write(path: string, content: string | Uint8Array, options?: { append?: boolean }): Promise<{ size: number }>;
  mkdir(path: string): Promise<null>;
  remove(path: string): Promise<null>;
}

export interface FetchOptions {
  method?: string;
  headers?: Record<string, string>;
  body?: string | Uint8Array;
  timeout?: string;
}

export interface FetchResponse {
  status: number;
  headers: Record<string, string>;
  body: Uint8Array;
  /** True if the host cut the body. */
  truncated: boolean;
}

export interface Net {
  fetch(url: string | URL, options?: FetchOptions): Promise<FetchResponse>;
}

export interface Secrets {
  get(name: string): Promise<string>;
  set(name: string, value: string): Promise<null>;
  delete(name: string): Promise<null>;
}

export interface Events {
  publish(name: string, payload?: unknown): Promise<{ id: string; subscribers: number }>;
  subscribe(pattern: string): Promise<{ subscription: string }>;
  unsubscribe(subscription: string): Promise<null>;
}

export type TimerOptions = ({ at: string } | { every: string } | { cron: string }) & {
  timezone?: string;
  payload?: unknown;
  missed?: 'skip' | 'once' | 'all';
};

export interface Scheduler {
  create(name: string, options: TimerOptions): Promise<{ id: string; next: string }>;
  list(): Promise<{ timers: { id: string; name: string; next: string }[] }>;
  cancel(id: string): Promise<{ cancelled: boolean }>;
}

export interface CalendarEntry {
  summary: string;
  start: string;
  end?: string;
  timezone?: string;
  rrule?: string;
  description?: string;
  location?: string;
}

export interface Occurrence {
  id: string;
  summary: string;
  start: string;
  end: string;
}

export interface Calendar {
  create(entry: CalendarEntry): Promise<{ id: string }>;
  read(id: string): Promise<CalendarEntry & { id: string }>;
  query(from: string, to: string, options?: { limit?: number }): Promise<{ occurrences: Occurrence[] }>;
  delete(id: string): Promise<{ deleted: boolean }>;
  import(ics: string): Promise<{ ids: string[] }>;
  export(ids?: string[]): Promise<{ ics: string }>;
}

export interface ArtifactInfo {
  name: string;
  digest: string;
  size: number;
  mediaType: string;
  metadata: Record<string, Json>;
}

export interface Artifacts {
  write(
    name: string,
    content: string | Uint8Array,
    options?: { mediaType?: string; metadata?: Record<string, Json> },
  ): Promise<{ digest: string; size: number }>;
  read(selector: { digest: string } | { name: string }): Promise<ArtifactInfo & { content: Uint8Array }>;
  list(options?: { after?: string; limit?: number }): Promise<{ artifacts: ArtifactInfo[]; more: boolean }>;
}

export interface Execution {
  stdout: string;
  stderr: string;
  exitCode: number | null;
  result: Json;
  killedBy: string | null;
}

type LogFunction = (message: string, fields?: Record<string, unknown>) => void;

/** The services of the host. Each request needs its permission in the manifest. */
export interface Services {
  readonly kv: Kv;
  readonly fs: Files;
  readonly net: Net;
  readonly secrets: Secrets;
  readonly events: Events;
  readonly scheduler: Scheduler;
  readonly calendar: Calendar;
  readonly artifacts: Artifacts;
  readonly log: { debug: LogFunction; info: LogFunction; warn: LogFunction; error: LogFunction };
  /** Calls a method of another plugin. */
  /**
   * Calls a method of another plugin. Parts of `metadata` that cannot cross are dropped, and the callee's context names
   * them: functions, symbols, handles, cycles.
   */
  invoke<T = Json>(
    plugin: string,
    method: string,
    input?: unknown,
    options?: { timeout?: string; metadata?: Record<string, unknown> },
  ): Promise<T>;
  /** Runs code in a sandbox. */
  execute(language: string, code: string, options?: { timeout?: string }): Promise<Execution>;
  /** Creates an empty file that is removed when the call ends. Returns its path. */
  temporaryFile(): Promise<string>;
}

/** The context of a call, an event or a timer. */
export interface Context extends Services {
  readonly requestId?: string;
  readonly tenant?: string;
  /** The trace of the call, as in W3C Trace Context. */
  readonly traceparent?: string;
  readonly deadline?: Date;
  readonly metadata: Record<string, Json>;
  /** The number of nested invocations. */
  readonly depth: number;
  /** JSON pointers to values that could not cross. */
  readonly dropped: string[];
  readonly correlationId: string;
  readonly config: any;
  /** Aborts when the call is cancelled or reaches its timeout. */
  readonly signal: AbortSignal;
  /** Reports progress. */
  progress(value: { message?: string; percent?: number } | Json): void;
}

export interface Event {
  id: string;
  name: string;
  payload: any;
  publisher: string;
  attempt: number;
  subscription: string;
}

export interface Timer {
  id: string;
  name: string;
  payload: any;
  scheduled: string;
  missed: number;
}

/** A plugin during its activation. */
export interface Plugin extends Services {
  readonly name: string;
  readonly version: string;
  readonly config: any;
  /** Registers a method. An async generator streams its items; its return value is the result. */
  method<Input = any, Output = any>(name: string, fn: Method<Input, Output>): this;
  method<Input = any, Output = any>(name: string, options: MethodOptions, fn: Method<Input, Output>): this;
  /** Registers a handler of events. `*` matches one part of a name, `**` at the end any number of parts. */
  onEvent(pattern: string, fn: (event: Event, ctx: Context) => unknown): this;
  /** Registers the handler of the timers with a name. */
  onTimer(name: string, fn: (timer: Timer, ctx: Context) => unknown): this;
  /** Registers a handler that runs before the plugin ends. */
  onShutdown(fn: () => unknown): this;
}

export type Activate = (plugin: Plugin) => unknown;

/** Runs a plugin on standard input and output, for plugins that are commands of their own. */
export function run(activate?: Activate): void;

export interface ErrorOptions {
  /** Further members of `data`. */
  data?: Record<string, unknown>;
  /** True if another attempt may succeed. */
  retryable?: boolean;
  cause?: unknown;
}

/** An error of a method or of a service. */
export class PluginError extends Error {
  constructor(message: string, options?: ErrorOptions);
  /** The kind of the protocol, such as `permission-denied`. */
  readonly kind: string;
  readonly code: number;
  readonly data: Record<string, any>;
}
export class InvalidRequestError extends PluginError {}
export class MethodNotFoundError extends PluginError {}
export class InvalidParamsError extends PluginError {}
export class InternalError extends PluginError {}
export class CancelledError extends PluginError {}
/** The manifest does not permit the request. `data` has `permission`, `target` and `remedy`. */
export class PermissionDeniedError extends PluginError {}
export class TimeoutError extends PluginError {}
export class LimitError extends PluginError {}
export class NotFoundError extends PluginError {}
/** The other plugin crashed, is restarting, or its circuit is open: `data.reason`. */
export class UnavailableError extends PluginError {}
export class ConflictError extends PluginError {}
