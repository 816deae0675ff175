// Code of a language: output as it arrives, then results such as figures.

import { useEffect, useRef, useState } from 'preact/hooks'

import { ApiError, decodeBase64, events, post, sandboxPath, send } from './api'
import { bytes, duration, name, output, visible } from './format'
import { Output, OutputText, useRedraw } from './output'
import type { CodeResult, OutputEvent } from './types'
import { Badge, Failure, Field, Input } from './ui'

/** The media types of figures. An image runs no script, whatever is in it. */
const IMAGES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp', 'image/svg+xml']
const LANGUAGES = ['python', 'javascript', 'typescript', 'bash', 'sh']
const EXAMPLE = "print('hello')"

interface Run {
  output: Output
  result: CodeResult | null
}

export function CodePanel({ id }: { id: string }) {
  const [language, setLanguage] = useState('python')
  const [code, setCode] = useState(EXAMPLE)
  const [keep, setKeep] = useState(false)
  const [run, setRun] = useState<Run | null>(null)
  const [error, setError] = useState<unknown>(null)
  const running = useRef<AbortController | null>(null)
  const kernel = useRef<{ path: string; language: string } | null>(null)
  const redraw = useRedraw()
  const path = sandboxPath(id)

  const target = async (signal: AbortSignal): Promise<string> => {
    if (!keep) return `${path}/code`
    if (kernel.current && kernel.current.language !== language) await closeKernel()
    if (!kernel.current) {
      // The start is not cut off, so that its kernel is known and can be closed.
      const opened = await post<{ id: string; language: string }>(`${path}/kernels`, { language })
      kernel.current = { path: `${path}/kernels/${encodeURIComponent(opened!.id)}`, language }
      signal.throwIfAborted()
    }
    return `${kernel.current.path}/code`
  }
  const closeKernel = async () => {
    const old = kernel.current
    kernel.current = null
    // A kernel may have ended before.
    if (old) await send(old.path, { method: 'DELETE' }).catch(() => {})
  }
  useEffect(
    () => () => {
      running.current?.abort()
      void closeKernel()
    },
    [id],
  )
  const execute = async () => {
    if (running.current) return
    const controller = new AbortController()
    const current: Run = { output: new Output(), result: null }
    running.current = controller
    setError(null)
    setRun(current)
    try {
      const options = { method: 'POST', json: { code, language }, signal: controller.signal }
      for await (const item of events(await target(controller.signal), options)) {
        const event = item as OutputEvent
        if (event.event === 'output') current.output.add(event.stream, decodeBase64(event.data))
        else if (event.event === 'lost') current.output.lost += event.bytes
        else if (event.event === 'result') current.result = event.result
        else if (event.event === 'error') throw ApiError.of(event.error)
        redraw()
      }
      if (!current.result) throw new Error('The connection was cut before the code ended.')
      if (current.result.session?.lost) await closeKernel()
    } catch (failure) {
      if (!keepsKernel(failure)) await closeKernel()
      setError(controller.signal.aborted ? new Error('The code was stopped.') : failure)
    }
    running.current = null
    redraw()
  }
  const busy = running.current !== null
  return (
    <>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          void execute()
        }}
      >
        <div class="line">
          <Field label="Language">
            <Input value={language} onText={setLanguage} list="languages" required />
          </Field>
          <datalist id="languages">
            {LANGUAGES.map((each) => (
              <option value={each} />
            ))}
          </datalist>
          <label class="check">
            <input type="checkbox" checked={keep} onChange={(event) => setKeep(event.currentTarget.checked)} /> Keep variables
          </label>
        </div>
        <Field label="Code" hint="Ctrl-Enter runs it.">
          <textarea
            class="mono"
            rows={10}
            spellcheck={false}
            value={code}
            onInput={(event) => setCode(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return
              event.preventDefault()
              void execute()
            }}
          />
        </Field>
        <div class="buttons">
          <button type="submit" class="primary" disabled={busy}>
            {busy ? 'Running…' : 'Run'}
          </button>
          <button type="button" disabled={!busy} onClick={() => running.current?.abort()}>
            Stop
          </button>
        </div>
      </form>
      <Failure error={error} />
      {run && (
        <section aria-label="Result">
          <OutputText of={run.output} label="Output of the code" />
          {run.result && <Outcome result={run.result} />}
        </section>
      )}
    </>
  )
}

/** Returns true for a refusal that leaves the kernel as it was, such as a rate that is used up. */
function keepsKernel(failure: unknown): boolean {
  return failure instanceof ApiError && failure.status >= 400 && failure.status < 500 && failure.status !== 404 && failure.status !== 410
}

function Outcome({ result }: { result: CodeResult }) {
  const success = result.exit_code === 0 && result.signal === null && !result.timed_out
  return (
    <>
      <p>
        <Badge kind={success ? 'good' : 'bad'}>
          {result.timed_out ? 'timed out' : result.signal !== null ? `signal ${result.signal}` : `exit code ${result.exit_code}`}
        </Badge>{' '}
        <span class="muted">{duration(result.duration)}</span>
      </p>
      {result.results.map((each, i) => (
        <Result key={i} data={each.data} note={each.note} />
      ))}
      {result.files.changes.length > 0 && (
        <>
          <h2>Changed files</h2>
          <ul>
            {result.files.changes.map((file) => (
              <li>
                <span class="mono">{name(file.name)}</span>{' '}
                <span class="muted">
                  {file.change}, {bytes(file.size)}
                </span>
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  )
}

function Result({ data, note }: { data: Record<string, unknown>; note: string | undefined }) {
  const media = IMAGES.find((type) => typeof data[type] === 'string')
  const text = typeof data['text/plain'] === 'string' ? data['text/plain'] : null
  const other = Object.entries(data).find(([type]) => !type.startsWith('image/'))
  return (
    <div class="result">
      {media ? (
        <img src={dataUrl(media, data[media] as string)} alt={text ? visible(text) : 'Figure'} />
      ) : (
        <pre class="output" tabIndex={0} role="region" aria-label="Result value">
          {output(text ?? (other ? asText(other[1]) : ''))}
        </pre>
      )}
      {note && <p class="muted">{visible(note)}</p>}
    </div>
  )
}

function asText(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value, null, 2)
}

function dataUrl(media: string, value: string): string {
  return media === 'image/svg+xml' ? `data:${media},${encodeURIComponent(value)}` : `data:${media};base64,${value}`
}
