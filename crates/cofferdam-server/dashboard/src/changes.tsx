// The changes of a copy-on-write workspace, as a difference to its directory.

import { useState } from 'preact/hooks'

import { post, send, sandboxPath } from './api'
import { type DiffFile, parse } from './diff'
import { name, visible } from './format'
import type { Applied, Unapplied } from './types'
import { Badge, Dialog, Failure, Loading, usePolled } from './ui'

const MAX_LINES = 5000

export function ChangesPanel({ id, workspace }: { id: string; workspace: string }) {
  const loaded = usePolled<{ diff: string; digest: string }>(
    async (signal) => {
      const response = await send(`${sandboxPath(id)}/changes?form=diff`, { signal })
      return { diff: await response.text(), digest: response.headers.get('Cofferdam-Changes-Digest') ?? '' }
    },
    0,
    [id],
  )
  const [applied, setApplied] = useState<Applied | null>(null)
  const [asking, setAsking] = useState(false)
  const apply = async (digest: string) => {
    setApplied(await post<Applied>(`${sandboxPath(id)}/changes/apply`, { digest }))
    loaded.reload()
  }
  const { diff, digest } = loaded.value ?? {}
  const isLong = (diff ?? '').split('\n').length > MAX_LINES
  const { files, total } = parse(diff ?? '')
  const warnings = files.flatMap((file) => file.lines).filter(({ kind }) => kind === 'warning').length
  return (
    <>
      <div class="title">
        <h2>Changes</h2>
        <div class="buttons">
          <button onClick={loaded.reload}>Load again</button>
          {digest && diff && !isLong && (
            <button class="primary" onClick={() => (setApplied(null), setAsking(true))}>
              Apply
            </button>
          )}
        </div>
      </div>
      <p class="muted">
        The differences to {name(workspace)}. Apply writes what is shown there; it needs the scope changes:apply.
      </p>
      <Failure error={loaded.error} />
      {applied && <Outcome applied={applied} />}
      {loaded.value === null && !loaded.error && <Loading />}
      {diff === '' && <p class="muted">There are no changes.</p>}
      {total !== '' && <p>{visible(total)}</p>}
      {diff && !digest && <p class="muted">The differences are too long to be reviewed here, so cofferdam diff --apply applies the changes.</p>}
      {diff && digest && isLong && <p class="muted">The differences have more than {MAX_LINES} lines, so cofferdam diff --apply applies the changes.</p>}
      {cut(files).map((file) => (
        <File key={file.path} file={file} />
      ))}
      {asking && (
        <Dialog title="Apply the changes?" action="Apply changes" onClose={() => setAsking(false)} onDone={() => apply(digest!)}>
          <p>
            {files.length === 1 ? '1 change is' : `${files.length} changes are`} written to {name(workspace)}.
          </p>
          {warnings > 0 && <p>Some have warnings. Conflicts and guarded files are not written.</p>}
        </Dialog>
      )}
    </>
  )
}

/** Returns the files up to a number of lines. */
function cut(files: DiffFile[]): DiffFile[] {
  let left = MAX_LINES
  return files.flatMap((file) => {
    const lines = file.lines.slice(0, left)
    left -= file.lines.length + 1
    return left < 0 && lines.length === 0 ? [] : [{ ...file, lines }]
  })
}

const CHANGES: Record<DiffFile['change'], 'good' | 'bad' | 'plain'> = { added: 'good', changed: 'plain', deleted: 'bad', renamed: 'plain' }

function File({ file }: { file: DiffFile }) {
  return (
    <details class="diff" open>
      <summary>
        <span class="mono">{name(file.path)}</span> <Badge kind={CHANGES[file.change]}>{file.change}</Badge>{' '}
        {file.added > 0 && <span class="added">+{file.added}</span>} {file.removed > 0 && <span class="removed">−{file.removed}</span>}
      </summary>
      {file.lines.length > 0 && (
        <pre tabIndex={0} role="region" aria-label={`Differences of ${name(file.path)}`}>
          {file.lines.map(({ kind, text }) => (
            <span class={kind}>{`${visible(text)}\n`}</span>
          ))}
        </pre>
      )}
    </details>
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
