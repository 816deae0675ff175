// A terminal over a WebSocket. A cut connection is opened again where it was.

import { FitAddon } from '@xterm/addon-fit'
import { Terminal } from '@xterm/xterm'
import { useEffect, useRef, useState } from 'preact/hooks'

import { ApiError, get, post, sandboxPath, socket } from './api'
import { describeExit } from './output'
import type { Exec, OutputEvent } from './types'
import { Failure, Field, Input } from './ui'

const RETRIES = 60
const RETRY = 1000
/** Bytes of input that may wait for the server. A paste beyond them is dropped. */
const MAX_WAITING = 1 << 20

/** A message has at most this many bytes. */
const PIECE = 16 * 1024

type Start = { command: string } | { exec: string }

export function TerminalPanel({ id }: { id: string }) {
  const [command, setCommand] = useState('sh')
  const [start, setStart] = useState<Start | null>(null)
  const [running, setRunning] = useState<Exec[]>([])
  useEffect(() => {
    const controller = new AbortController()
    get<{ execs: Exec[] }>(sandboxPath(id, '/execs?limit=1000'), controller.signal).then(
      ({ execs }) => setRunning(execs.filter((exec) => exec.state === 'running' && exec.terminal)),
      () => {},
    )
    return () => controller.abort()
  }, [id, start])
  if (start) return <Session id={id} start={start} onClose={() => setStart(null)} />
  return (
    <>
      <form
        class="line"
        onSubmit={(event) => {
          event.preventDefault()
          setStart({ command })
        }}
      >
        <Field label="Command">
          <Input value={command} onText={setCommand} required class="mono" name="command" />
        </Field>
        <button type="submit" class="primary">
          Open terminal
        </button>
      </form>
      {running.length > 0 && (
        <>
          <h2>Open terminals</h2>
          <ul class="plain">
            {running.map((exec) => (
              <li key={exec.id}>
                <button onClick={() => setStart({ exec: exec.id })}>
                  Attach to <span class="mono">{exec.command}</span>
                </button>
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  )
}

function Session({ id, start, onClose }: { id: string; start: Start; onClose: () => void }) {
  const box = useRef<HTMLDivElement>(null)
  const [status, setStatus] = useState('Connecting…')
  const [error, setError] = useState<unknown>(null)
  useEffect(() => {
    const dark = matchMedia('(prefers-color-scheme: dark)')
    const terminal = new Terminal({
      cursorBlink: false,
      fontFamily: 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace',
      fontSize: 14,
      minimumContrastRatio: 4.5,
      screenReaderMode: true,
      scrollback: 5000,
      theme: theme(dark.matches),
      // Links are the guest's: they are text.
      linkHandler: { activate: () => {} },
    })
    const fit = new FitAddon()
    terminal.loadAddon(fit)
    terminal.open(box.current!)
    fit.fit()
    terminal.focus()
    // Tab belongs to the program, and Ctrl-] leaves the terminal, as on the command line.
    terminal.attachCustomKeyEventHandler((event) => {
      if (event.type !== 'keydown' || !event.ctrlKey || event.key !== ']') return true
      document.getElementById('leave-terminal')?.focus()
      return false
    })
    const themed = () => (terminal.options.theme = theme(dark.matches))
    dark.addEventListener('change', themed)
    const connection = new Connection(id, start, terminal, setStatus, setError)
    const observer = new ResizeObserver(() => fit.fit())
    observer.observe(box.current!)
    void connection.run()
    return () => {
      observer.disconnect()
      dark.removeEventListener('change', themed)
      connection.close()
      terminal.dispose()
    }
  }, [])
  return (
    <section aria-label="Terminal">
      <div class="terminal-box" ref={box} />
      <div class="buttons">
        <button id="leave-terminal" onClick={onClose}>
          Leave
        </button>
        <span class="muted" role="status">
          {status}
        </span>
      </div>
      <p class="hint">Ctrl-] moves the focus out of the terminal. A command goes on when you leave.</p>
      <Failure error={error} />
    </section>
  )
}

class Connection {
  private offset = 0
  private closed = false
  private ended = false
  private current: WebSocket | null = null

  constructor(
    private readonly id: string,
    private readonly start: Start,
    private readonly terminal: Terminal,
    private readonly setStatus: (status: string) => void,
    private readonly setError: (error: unknown) => void,
  ) {
    terminal.onData((text) => this.input(new TextEncoder().encode(text)))
    terminal.onBinary((text) => this.input(Uint8Array.from(text, (c) => c.charCodeAt(0))))
    terminal.onResize(() => this.resize())
  }

  async run() {
    try {
      const exec = 'exec' in this.start ? this.start.exec : await this.begin(this.start.command)
      const path = sandboxPath(this.id, `/execs/${encodeURIComponent(exec)}`)
      for (let failures = 0; failures < RETRIES && !this.closed && !this.ended; failures++) {
        if (await this.attach(`${path}/attach?offset=${this.offset}`)) failures = 0
        if (this.closed || this.ended) return
        this.setStatus('The connection is lost. Connecting again…')
        await new Promise((resolve) => setTimeout(resolve, RETRY))
        // A browser does not say why a WebSocket fails.
        await get(path).catch((error) => {
          if (error instanceof ApiError && error.status >= 400 && error.status < 500) throw error
        })
      }
    } catch (error) {
      if (!this.closed) {
        this.setStatus('Not connected.')
        this.setError(error)
      }
    }
  }

  close() {
    this.closed = true
    this.current?.close()
  }

  private async begin(command: string): Promise<string> {
    const { rows, cols } = this.terminal
    const body = { shell: command, stdin: 'stream', terminal: { rows, columns: cols }, env: { TERM: 'xterm-256color' }, max_output: '64MiB' }
    return (await post<Exec>(sandboxPath(this.id, '/execs'), body))!.id
  }

  /** Passes bytes until the connection ends. Returns true if there was one. */
  private attach(path: string): Promise<boolean> {
    return new Promise((resolve) => {
      const opened = socket(path)
      let was = false
      this.current = opened
      opened.onopen = () => {
        was = true
        this.setStatus('Connected.')
        this.resize()
      }
      opened.onmessage = ({ data }) => {
        if (typeof data === 'string') return this.event(JSON.parse(data) as OutputEvent)
        const bytes = new Uint8Array(data as ArrayBuffer).subarray(1)
        this.offset += bytes.length
        this.terminal.write(bytes)
      }
      opened.onclose = () => resolve(was)
    })
  }

  private event(event: OutputEvent) {
    if (event.event === 'lost') {
      this.offset = event.offset
      this.terminal.write(`\r\n[${event.bytes} bytes of output were lost]\r\n`)
    } else if (event.event === 'exit') {
      this.ended = true
      this.setStatus(`The command has ended: ${describeExit(event.exit)}.`)
    } else if (event.event === 'error') {
      this.ended = true
      this.setStatus('The command has failed.')
      this.setError(ApiError.of(event.error))
    }
  }

  private input(bytes: Uint8Array) {
    const to = this.current
    if (!to || to.readyState !== WebSocket.OPEN || to.bufferedAmount > MAX_WAITING) return
    for (let at = 0; at < bytes.length; at += PIECE) to.send(bytes.slice(at, at + PIECE))
  }

  private resize() {
    const { rows, cols } = this.terminal
    if (this.current?.readyState === WebSocket.OPEN) this.current.send(JSON.stringify({ op: 'resize', rows, columns: cols }))
  }
}

function theme(dark: boolean) {
  return dark
    ? { background: '#10161b', foreground: '#dfe7ec', cursor: '#dfe7ec', selectionBackground: '#2f5468' }
    : { background: '#fbfcfd', foreground: '#17222b', cursor: '#17222b', selectionBackground: '#b9dcec' }
}
