// Documents of the API, as far as the dashboard uses them. `openapi.json` describes them.

export interface Sandbox {
  id: string
  name: string | null
  backend: string
  level: string
  state: 'running' | 'paused'
  created: number
  ends: number
  idle: number
  used: number
  running: number
  busy: boolean
  labels: Record<string, string>
  parent: string | null
}

export interface NetworkRule {
  host: string
  protocol?: string
  methods?: string[]
  paths?: string[]
  [limit: string]: unknown
}

export type NetworkPolicy =
  | { kind: 'none' }
  | { kind: 'allow'; hosts: string[] }
  | { kind: 'rules'; allow: NetworkRule[] }
  | { kind: 'learn'; allow: boolean }

export interface PostureItem {
  protection: string
  state: string
  mechanism: string
  probed: boolean
  remedy?: string
}

export interface SandboxDetails extends Sandbox {
  workspace?: string
  limits: Record<string, unknown>
  network: NetworkPolicy
  posture: PostureItem[]
}

export interface Backend {
  name: string
  level: string
  default: boolean
  capabilities: string[]
}

export interface Exit {
  code: number
  signal: number | null
  timed_out: boolean
  cancelled: boolean
  truncated: boolean
  killed_by: string | null
  duration: number
}

export interface Exec {
  id: string
  command: string
  state: 'running' | 'ended' | 'failed'
  started: number
  terminal: boolean
  stdin: boolean
  exit: Exit | null
  error: { title: string; detail: string } | null
}

export interface Usage {
  cpu_seconds: number | null
  memory_bytes: number | null
  peak_memory_bytes: number | null
  processes: number | null
  disk_bytes: number | null
}

export interface NetworkUsage {
  connections: number
  refused: number
  sent_bytes: number
  received_bytes: number
}

export interface Entry {
  name: string
  kind: string
  size: number
  mode: number
  modified: number
  target?: string
}

export interface Snapshot {
  id: string
  name: string | null
  backend: string
  created: number
  bytes: number
  sha256: string
  parent: string | null
}

export interface Data {
  text?: string
  base64?: string
}

export interface CodeResult {
  stdout: Data
  stderr: Data
  exit_code: number
  signal: number | null
  timed_out: boolean
  killed_by: string | null
  duration: number
  results: { kind: string; data: Record<string, unknown>; note?: string }[]
  files: { changes: { name: string; change: string; size: number }[]; total: number }
  session: { id: string; calls: number; lost: string | null } | null
}

export type OutputEvent =
  | { event: 'output'; stream: 'stdout' | 'stderr'; offset: number; data: string }
  | { event: 'lost'; bytes: number; offset: number }
  | { event: 'exit'; exit: Exit }
  | { event: 'result'; result: CodeResult }
  | { event: 'error'; error: { title: string; detail: string; status: number; kind: string; remedy?: string } }

export interface UsageOfDay {
  sandboxes: number
  execs: number
  cpu_us: number
  memory_mib_ms: number
  egress_bytes: number
  output_bytes: number
  disk_mib_ms: number
  audit_bytes: number
}

export interface UsageRow extends UsageOfDay {
  tenant: string
  day: number
  label: string
  /** Millionths of the currency, if the operator has set prices. */
  cost_micros?: number
}

export interface QuotaState {
  quota: Record<string, number | string | null>
  sandboxes: number
  memory_mib: number
  disk_mib: number
  snapshots: number
  snapshot_bytes: number
  volumes: number
  volume_bytes: number
  today: UsageOfDay
}

export interface Pool {
  backend: string
  level: string
  pool: string
  idle: number
  target: number
  refilling: number
  claimed: number
  waiting: number
  claims: Record<string, number>
  failures: number
  refills: number
  refill_failures: number
  refill_error?: string
}

export interface AuditLine {
  seq: number
  record: { kind: string; [key: string]: unknown }
}

export interface AuditPage {
  lines: AuditLine[]
  before?: number
}

export interface Unapplied {
  path: string
  reason: string
  kept_as?: string
}

export interface Applied {
  applied: string[]
  conflicts: Unapplied[]
  refused: Unapplied[]
  error?: Unapplied
}
