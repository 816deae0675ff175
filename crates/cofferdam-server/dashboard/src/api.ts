// The REST API. The key is in the storage of this tab only, and leaves it in the header `Authorization` or, for a
// WebSocket, which can have no such header, as a protocol.

const STORED = 'cofferdam-key'
const EVENT_LIMIT = 16 * 1024 * 1024

export interface Problem {
  title: string
  status: number
  detail: string
  kind: string
  remedy?: string
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly kind: string,
    message: string,
    readonly remedy?: string,
  ) {
    super(message)
  }

  static of(problem: Problem): ApiError {
    return new ApiError(problem.status, problem.kind, `${problem.title}: ${problem.detail}`, problem.remedy)
  }
}

export function storedKey(): string | null {
  return sessionStorage.getItem(STORED)
}

export function storeKey(key: string | null) {
  if (key === null) sessionStorage.removeItem(STORED)
  else sessionStorage.setItem(STORED, key)
}

let refused = () => {}

/** Sets what happens when the server no longer accepts the key. */
export function onRefused(callback: () => void) {
  refused = callback
}

export interface Options {
  method?: string
  json?: unknown
  body?: BodyInit
  headers?: Record<string, string>
  signal?: AbortSignal
}

/** Sends a request. Throws an `ApiError` for an answer that is a failure. */
export async function send(path: string, options: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { ...options.headers }
  const key = storedKey()
  if (key !== null) headers['Authorization'] = `Bearer ${key}`
  const init: RequestInit = { method: options.method ?? 'GET', headers, credentials: 'omit', cache: 'no-store', redirect: 'error' }
  if (options.json !== undefined) {
    headers['Content-Type'] = 'application/json'
    init.body = JSON.stringify(options.json)
  } else if (options.body !== undefined) {
    headers['Content-Type'] = 'application/octet-stream'
    init.body = options.body
  }
  if (options.signal) init.signal = options.signal
  let response: Response
  try {
    response = await fetch(path, init)
  } catch (error) {
    if (options.signal?.aborted) throw error
    throw new ApiError(0, 'unavailable', 'The server does not answer.')
  }
  if (response.ok) return response
  const text = await response.text()
  if (response.status === 401) refused()
  try {
    throw ApiError.of(JSON.parse(text) as Problem)
  } catch (error) {
    if (error instanceof ApiError) throw error
    throw new ApiError(response.status, 'internal', `The server answered with status ${response.status}.`)
  }
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await send(path, signal ? { signal } : {})
  return (await response.json()) as T
}

export async function post<T>(path: string, json: unknown, signal?: AbortSignal): Promise<T | null> {
  const response = await send(path, { method: 'POST', json, ...(signal ? { signal } : {}) })
  const text = await response.text()
  return text === '' ? null : (JSON.parse(text) as T)
}

/** Reads the data of server-sent events. `EventSource` cannot send a key. */
export async function* events(path: string, options: Options): AsyncGenerator<unknown> {
  const headers = { ...options.headers, Accept: 'text/event-stream' }
  const response = await send(path, { ...options, headers })
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      rest += value
      if (rest.length > EVENT_LIMIT) throw new ApiError(0, 'internal', 'An event of the server is too large.')
      const blocks = rest.split('\n\n')
      rest = blocks.pop()!
      for (const block of blocks) {
        const lines = block.split('\n').filter((line) => line.startsWith('data:'))
        if (lines.length > 0) yield JSON.parse(lines.map((line) => line.slice(5)).join('\n'))
      }
    }
  } finally {
    await reader.cancel().catch(() => {})
  }
}

/** Opens a WebSocket of the API. */
export function socket(path: string): WebSocket {
  const protocols = ['cofferdam.v1']
  const key = storedKey()
  if (key !== null) {
    const bytes = new TextEncoder().encode(key)
    const base64 = btoa(String.fromCharCode(...bytes)).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '')
    protocols.push(`cofferdam.bearer.${base64}`)
  }
  const url = new URL(path, location.href)
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:'
  const opened = new WebSocket(url, protocols)
  opened.binaryType = 'arraybuffer'
  return opened
}

export function decodeBase64(text: string): Uint8Array {
  const binary = atob(text)
  const bytes = new Uint8Array(binary.length)
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i)
  return bytes
}

export function sandboxPath(id: string, rest = ''): string {
  return `/v1/sandboxes/${encodeURIComponent(id)}${rest}`
}
