// The changes of a copy-on-write workspace, as a difference to its directory.

import { useState } from 'preact/hooks'

import { post, send, sandboxPath } from './api'
import { visible } from './format'
import type { Applied, Unapplied } from './types'
import { Failure, Loading, useAction, usePolled } from './ui'

const MAX_LINES = 5000

export function ChangesPanel({ id }: { id: string }) {
  const loaded = usePolled<{ diff: string; digest: string }>(
    async (signal) => {
      const response = await send(`${sandboxPath(id)}/changes?form=diff`, { signal })
      return { diff: await response.text(), digest: response.headers.get('Cofferdam-Changes-Digest') ?? '' }
    },
    0,
    [id],
  )
  const [applied, setApplied] = useState<Applied | null>(null)
  const { busy, error, run } = useAction()
  const apply = async (digest: string) => {
    setApplied(null)
    const done = await run(async () => setApplied(await post<Applied>(`${sandboxPath(id)}/changes/apply`, { digest })))
    if (done) loaded.reload()
  }
  const diff = loaded.value?.diff
  const lines = (diff ?? '').split('\n')
  return (
    <>
      <div class="title">
        <h2>Changes</h2>
        <div class="buttons">
          <button onClick={loaded.reload}>Load again</button>
          {loaded.value?.digest && diff && lines.length <= MAX_LINES && (
            <button class="primary" disabled={busy} onClick={() => void apply(loaded.value!.digest)}>
              {busy ? 'Applying…' : 'Apply'}
            </button>
          )}
        </div>
      </div>
      <p class="muted">
        The differences to the directory of the workspace. Apply writes what is shown there; it needs the scope changes:apply.
      </p>
      <Failure error={loaded.error} />
      <Failure error={error} />
      {applied && <Outcome applied={applied} />}
      {loaded.value === null && !loaded.error && <Loading />}
      {diff === '' && <p class="muted">There are no changes.</p>}
      {diff && (
        <pre class="diff" tabIndex={0} aria-label="Differences">
          {lines.slice(0, MAX_LINES).map((line) => (
            <span class={kind(line)}>{`${visible(line)}\n`}</span>
          ))}
        </pre>
      )}
      {lines.length > MAX_LINES && <p class="muted">{lines.length - MAX_LINES} more lines are not shown, so cofferdam diff --apply applies the changes.</p>}
    </>
  )
}

function Outcome({ applied }: { applied: Applied }) {
  const left = (title: string, changes: Unapplied[]) =>
    changes.length > 0 && (
      <>
        <p>{title}</p>
        <ul>
          {changes.map((one) => (
            <li>
              {visible(one.path)}: {visible(one.reason)}
              {one.kept_as && `; the guest's version is ${visible(one.kept_as)}`}
            </li>
          ))}
        </ul>
      </>
    )
  return (
    <div role="status" aria-label="Result">
      <p>{applied.applied.length === 1 ? '1 change was applied.' : `${applied.applied.length} changes were applied.`}</p>
      {left('Conflicts with the directory:', applied.conflicts)}
      {left('Not applied:', applied.refused)}
      {left('An error ended it:', applied.error ? [applied.error] : [])}
    </div>
  )
}

function kind(line: string): string {
  if (/^(diff |index |--- |\+\+\+ |new |deleted |old |rename |similarity )/.test(line)) return 'file'
  if (line.startsWith('@@')) return 'hunk'
  if (line.startsWith('+')) return 'added'
  if (line.startsWith('-')) return 'removed'
  return ''
}
