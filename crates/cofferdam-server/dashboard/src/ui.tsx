// Parts of all views.

import type { ComponentChildren } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'

import { ApiError } from './api'
import { visible } from './format'

export interface Loaded<T> {
  value: T | null
  error: unknown
  reload: () => void
}

/** Loads a value, and again after each interval while the page is visible. `0` loads it once, visible or not. */
export function usePolled<T>(load: (signal: AbortSignal) => Promise<T>, interval: number, inputs: unknown[]): Loaded<T> {
  const [state, setState] = useState<{ value: T | null; error: unknown }>({ value: null, error: null })
  const [turn, setTurn] = useState(0)
  useEffect(() => setState({ value: null, error: null }), inputs)
  useEffect(() => {
    const controller = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    const poll = async () => {
      if (interval === 0 || document.visibilityState === 'visible') {
        try {
          const value = await load(controller.signal)
          if (!controller.signal.aborted) setState({ value, error: null })
        } catch (error) {
          if (controller.signal.aborted) return
          setState((before) => ({ value: before.value, error }))
        }
      }
      if (interval > 0 && !controller.signal.aborted) timer = setTimeout(poll, interval)
    }
    void poll()
    return () => {
      controller.abort()
      clearTimeout(timer)
    }
  }, [...inputs, interval, turn])
  return { ...state, reload: () => setTurn((n) => n + 1) }
}

export function Failure({ error }: { error: unknown }) {
  if (!error) return null
  const text = error instanceof Error ? error.message : String(error)
  const remedy = error instanceof ApiError ? error.remedy : undefined
  return (
    <div class="failure" role="alert">
      {visible(text)}
      {remedy && <div class="remedy">{visible(remedy)}</div>}
    </div>
  )
}

/** Runs an action once at a time, and shows its failure. */
export function useAction(): { busy: boolean; error: unknown; run: (action: () => Promise<unknown>) => Promise<boolean> } {
  const [state, setState] = useState<{ busy: boolean; error: unknown }>({ busy: false, error: null })
  const run = async (action: () => Promise<unknown>) => {
    setState({ busy: true, error: null })
    try {
      await action()
      setState({ busy: false, error: null })
      return true
    } catch (error) {
      setState({ busy: false, error })
      return false
    }
  }
  return { ...state, run }
}

interface DialogProps {
  title: string
  action: string
  danger?: boolean
  onClose: () => void
  onDone: () => Promise<unknown>
  children?: ComponentChildren
}

/** A dialog with a form. It closes when its action has succeeded. */
export function Dialog({ title, action, danger, onClose, onDone, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null)
  const { busy, error, run } = useAction()
  useEffect(() => dialog.current?.showModal(), [])
  const submit = async (event: Event) => {
    event.preventDefault()
    if (await run(onDone)) onClose()
  }
  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="dialog-title">
      <form onSubmit={submit}>
        <h2 id="dialog-title">{title}</h2>
        {children}
        <Failure error={error} />
        <div class="buttons end">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class={danger ? 'danger' : 'primary'} disabled={busy}>
            {busy ? 'Working…' : action}
          </button>
        </div>
      </form>
    </dialog>
  )
}

export function Field({ label, hint, wide, children }: { label: string; hint?: string; wide?: boolean; children: ComponentChildren }) {
  return (
    <label class={wide ? 'field wide' : 'field'}>
      <span class="label">{label}</span>
      {children}
      {hint && <span class="hint">{hint}</span>}
    </label>
  )
}

interface InputProps {
  value: string
  onText: (text: string) => void
  type?: 'text' | 'password' | 'number' | 'datetime-local'
  name?: string
  class?: string
  list?: string
  placeholder?: string
  min?: number
  max?: number
  required?: boolean
  autofocus?: boolean
}

export function Input({ value, onText, ...rest }: InputProps) {
  return (
    <input
      autocomplete="off"
      spellcheck={false}
      {...(rest as object)}
      value={value}
      onInput={(event) => onText(event.currentTarget.value)}
    />
  )
}

/** A table that scrolls sideways where it does not fit. */
export function Table({ label, head, children }: { label: string; head: string[]; children: ComponentChildren }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table class={head.length > 4 ? 'wide' : ''}>
        <thead>
          <tr>
            {head.map((text) => (
              <th scope="col">{text || <span class="hidden">Actions</span>}</th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  )
}

export function Badge({ kind, children }: { kind: 'good' | 'bad' | 'warn' | 'plain'; children: ComponentChildren }) {
  return <span class={`badge ${kind}`}>{children}</span>
}

export function Meter({ label, used, limit, text }: { label: string; used: number; limit: number | null; text: string }) {
  return (
    <div class="meter-row">
      <span class="meter-label">{label}</span>
      <span class="meter-text">{text}</span>
      {limit !== null && <progress aria-label={label} max={Math.max(limit, 1)} value={Math.min(used, limit)} />}
    </div>
  )
}

export function Loading() {
  return (
    <p class="muted" role="status">
      Loading…
    </p>
  )
}

/** Saves bytes as a file of the user. */
export function save(blob: Blob, fileName: string) {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(blob)
  link.download = fileName
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000)
}
