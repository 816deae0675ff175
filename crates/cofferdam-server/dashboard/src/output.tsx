// Output of programs as text.

import { useEffect, useRef, useState } from 'preact/hooks'

import { ApiError, decodeBase64, events } from './api'
import { bytes, output } from './format'
import type { Exit, OutputEvent } from './types'
import { Failure } from './ui'

/** The most characters that are shown. The first ones are left out. */
const LIMIT = 256 * 1024
/** The time after which a cut stream is opened again. */
const RETRY = 1000

interface Segment {
  stream: 'stdout' | 'stderr'
  text: string
}

/** The last output of a program. */
export class Output {
  segments: Segment[] = []
  cut = false
  lost = 0
  private length = 0
  private readonly decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() }

  add(stream: Segment['stream'], data: Uint8Array) {
    const text = this.decoders[stream].decode(data, { stream: true })
    const last = this.segments[this.segments.length - 1]
    if (last && last.stream === stream && last.text.length < 16384) last.text += text
    else this.segments.push({ stream, text })
    this.length += text.length
    while (this.length > LIMIT && this.segments.length > 1) {
      this.length -= this.segments.shift()!.text.length
      this.cut = true
    }
  }
}

export function OutputText({ of, label }: { of: Output; label: string }) {
  const box = useRef<HTMLPreElement>(null)
  const atEnd = useRef(true)
  useEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight
  })
  return (
    <>
      {of.cut && <p class="muted">The beginning is left out here.</p>}
      {of.lost > 0 && <p class="muted">{bytes(of.lost)} of output were lost.</p>}
      <pre
        class="output"
        ref={box}
        tabIndex={0}
        role="log"
        aria-label={label}
        onScroll={(event) => {
          const { scrollTop, scrollHeight, clientHeight } = event.currentTarget
          atEnd.current = scrollTop + clientHeight >= scrollHeight - 8
        }}
      >
        {of.segments.map(({ stream, text }) => (stream === 'stderr' ? <span class="stderr">{output(text)}</span> : output(text)))}
      </pre>
    </>
  )
}

export function describeExit(exit: Exit): string {
  if (exit.timed_out) return 'timed out'
  if (exit.killed_by) return `killed by the limit of ${exit.killed_by}`
  if (exit.cancelled) return 'cancelled'
  if (exit.signal !== null) return `ended by signal ${exit.signal}`
  return `exit code ${exit.code}`
}

/** Returns a function that draws the component again, at most once for each frame. */
export function useRedraw(): () => void {
  const [, setCount] = useState(0)
  const frame = useRef(0)
  useEffect(() => () => cancelAnimationFrame(frame.current), [])
  return () => {
    if (frame.current !== 0) return
    frame.current = requestAnimationFrame(() => {
      frame.current = 0
      setCount((count) => count + 1)
    })
  }
}

/** The output of an exec, from its start, as it arrives. A cut connection is opened again where it was. */
export function ExecOutput({ path, onEnd }: { path: string; onEnd: () => void }) {
  const [out] = useState(() => new Output())
  const [error, setError] = useState<unknown>(null)
  const redraw = useRedraw()
  useEffect(() => {
    const controller = new AbortController()
    let offset = 0
    const once = async (): Promise<boolean> => {
      for await (const item of events(`${path}/output?offset=${offset}`, { signal: controller.signal })) {
        const event = item as OutputEvent
        if (event.event === 'output') {
          const data = decodeBase64(event.data)
          out.add(event.stream, data)
          offset = event.offset + data.length
        } else if (event.event === 'lost') {
          out.lost += event.bytes
          offset = event.offset
        } else {
          if (event.event === 'error') setError(ApiError.of(event.error))
          onEnd()
          return true
        }
        redraw()
      }
      return false
    }
    const follow = async () => {
      while (!controller.signal.aborted) {
        try {
          if (await once()) return
        } catch (failure) {
          if (controller.signal.aborted) return
          if (failure instanceof ApiError && failure.status >= 400 && failure.status < 500) return setError(failure)
        }
        await new Promise((resolve) => setTimeout(resolve, RETRY))
      }
    }
    void follow().then(redraw)
    return () => controller.abort()
  }, [path])
  return (
    <>
      <OutputText of={out} label="Output" />
      <Failure error={error} />
    </>
  )
}
