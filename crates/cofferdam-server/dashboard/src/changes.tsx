// The changes of a copy-on-write workspace, as a difference to its directory.

import { send, sandboxPath } from './api'
import { visible } from './format'
import { Failure, Loading, usePolled } from './ui'

const MAX_LINES = 5000

export function ChangesPanel({ id }: { id: string }) {
  const loaded = usePolled<string>(
    async (signal) => (await send(`${sandboxPath(id)}/changes?form=diff`, { signal })).text(),
    0,
    [id],
  )
  const lines = (loaded.value ?? '').split('\n')
  return (
    <>
      <div class="title">
        <h2>Changes</h2>
        <button onClick={loaded.reload}>Load again</button>
      </div>
      <p class="muted">The differences to the directory of the workspace. cofferdam diff --apply writes them there.</p>
      <Failure error={loaded.error} />
      {loaded.value === null && !loaded.error && <Loading />}
      {loaded.value === '' && <p class="muted">There are no changes.</p>}
      {loaded.value && (
        <pre class="diff" tabIndex={0} aria-label="Differences">
          {lines.slice(0, MAX_LINES).map((line) => (
            <span class={kind(line)}>{`${visible(line)}\n`}</span>
          ))}
        </pre>
      )}
      {lines.length > MAX_LINES && <p class="muted">{lines.length - MAX_LINES} more lines are not shown.</p>}
    </>
  )
}

function kind(line: string): string {
  if (/^(diff |index |--- |\+\+\+ |new |deleted |old |rename |similarity )/.test(line)) return 'file'
  if (line.startsWith('@@')) return 'hunk'
  if (line.startsWith('+')) return 'added'
  if (line.startsWith('-')) return 'removed'
  return ''
}
