// The files of a sandbox.

import { useState } from 'preact/hooks'

import { get, sandboxPath, send } from './api'
import { bytes, name, output, time } from './format'
import { link } from './router'
import type { Entry } from './types'
import { Dialog, Failure, Loading, save, Table, useAction, usePolled } from './ui'

/** The most bytes that are shown as text. */
const VIEW_LIMIT = 256 * 1024
/** The most bytes of a download, which passes through the memory of the page. */
const DOWNLOAD_LIMIT = 1024 * 1024 * 1024

function filePath(id: string, path: string[], kind = ''): string {
  return sandboxPath(id, `/files${kind}?path=${encodeURIComponent(path.join('/') || '.')}`)
}

export function FilesPanel({ id, path }: { id: string; path: string[] }) {
  const here = path.filter((part) => part !== '')
  // A request is a use of the sandbox, so a list that refreshes itself would keep it from its idle timeout.
  const list = usePolled<{ entries: Entry[]; next: string | null }>((signal) => get(`${filePath(id, here, '/list')}&limit=1000`, signal), 0, [id, here.join('/')])
  const [viewed, setViewed] = useState<{ name: string; text: string; cut: boolean } | null>(null)
  const [deleting, setDeleting] = useState<Entry | null>(null)
  const { busy, error, run } = useAction()
  const view = (entry: Entry) =>
    run(async () => {
      const headers = entry.size > 0 ? { Range: `bytes=0-${VIEW_LIMIT - 1}` } : undefined
      const response = await send(filePath(id, [...here, entry.name]), headers ? { headers } : {})
      const data = new Uint8Array(await response.arrayBuffer())
      setViewed({ name: entry.name, text: new TextDecoder().decode(data), cut: entry.size > data.length })
    })
  const download = (entry: Entry) =>
    run(async () => {
      if (entry.size > DOWNLOAD_LIMIT) throw new Error('The file is too large for the browser. Use cofferdam cp.')
      const response = await send(filePath(id, [...here, entry.name]))
      save(new Blob([await response.arrayBuffer()], { type: 'application/octet-stream' }), entry.name)
    })
  const upload = (files: FileList | null) =>
    run(async () => {
      for (const file of files ?? []) await send(filePath(id, [...here, file.name]), { method: 'PUT', body: file })
    }).then(list.reload)
  const entries = [...(list.value?.entries ?? [])].sort((a, b) => Number(b.kind === 'directory') - Number(a.kind === 'directory'))
  return (
    <>
      <div class="title">
        <nav class="path" aria-label="Directory">
          {[...here.keys(), -1]
            .sort((a, b) => a - b)
            .map((at) => (
              <>
                {at >= 0 && ' / '}
                <a href={link('sandboxes', id, 'files', ...here.slice(0, at + 1))} aria-current={at === here.length - 1 ? 'location' : undefined}>
                  {at < 0 ? 'workspace' : name(here[at]!)}
                </a>
              </>
            ))}
        </nav>
        <button onClick={list.reload}>Reload</button>
        <label class={`button ${busy ? 'disabled' : ''}`}>
          Upload
          <input
            type="file"
            multiple
            disabled={busy}
            onChange={(event) => {
              void upload(event.currentTarget.files).then(() => (event.target as HTMLInputElement).value = '')
            }}
          />
        </label>
      </div>
      <Failure error={error ?? list.error} />
      {list.value === null && !list.error && <Loading />}
      {list.value?.next && <p class="muted">The directory has more entries. Only the first 1000 are shown.</p>}
      {list.value && entries.length === 0 && <p class="muted">The directory is empty.</p>}
      {entries.length > 0 && (
        <Table label="Files" head={['Name', 'Size', 'Changed', '']}>
          {entries.map((entry) => (
            <tr key={entry.name}>
              <th scope="row">
                {entry.kind === 'directory' ? (
                  <a href={link('sandboxes', id, 'files', ...here, entry.name)}>{name(entry.name)}/</a>
                ) : (
                  name(entry.name)
                )}
                {entry.target !== undefined && <span class="muted"> → {name(entry.target)}</span>}
              </th>
              <td class="short">{entry.kind === 'file' ? bytes(entry.size) : entry.kind}</td>
              <td class="short">{time(entry.modified)}</td>
              <td>
                <div class="buttons">
                  {entry.kind === 'file' && (
                    <>
                      <button aria-label={`View ${name(entry.name)}`} disabled={busy} onClick={() => view(entry)}>
                        View
                      </button>
                      <button aria-label={`Download ${name(entry.name)}`} disabled={busy} onClick={() => download(entry)}>
                        Download
                      </button>
                    </>
                  )}
                  <button class="danger" aria-label={`Delete ${name(entry.name)}`} onClick={() => setDeleting(entry)}>
                    Delete
                  </button>
                </div>
              </td>
            </tr>
          ))}
        </Table>
      )}
      {viewed && (
        <section aria-label="File">
          <div class="title">
            <h2>{name(viewed.name)}</h2>
            <button onClick={() => setViewed(null)}>Close</button>
          </div>
          {viewed.cut && <p class="muted">Only the beginning is shown.</p>}
          <pre class="output" tabIndex={0} aria-label="Contents" role="region">
            {output(viewed.text)}
          </pre>
        </section>
      )}
      {deleting && (
        <Dialog
          title={`Delete ${name(deleting.name)}?`}
          action="Delete"
          danger
          onClose={() => setDeleting(null)}
          onDone={() => send(filePath(id, [...here, deleting.name]), { method: 'DELETE' }).then(list.reload)}
        >
          {deleting.kind === 'directory' && <p>The directory is deleted with its contents.</p>}
        </Dialog>
      )}
    </>
  )
}
