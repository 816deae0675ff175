// Snapshots of the tenant, and the tree of what was created from what.

import { useState } from 'preact/hooks'

import { get, post, send } from './api'
import { bytes, name, shortId, since, time } from './format'
import { go, link } from './router'
import type { Sandbox, Snapshot } from './types'
import { Dialog, Failure, Field, Input, Loading, Table, usePolled } from './ui'

const REFRESH = 5000
const PAGE = 100

interface Page {
  snapshots: Snapshot[]
  next: string | null
}

export function SnapshotsPage() {
  const [pages, setPages] = useState<string[]>([])
  const [restoring, setRestoring] = useState<Snapshot | null>(null)
  const [deleting, setDeleting] = useState<Snapshot | null>(null)
  const [text, setText] = useState('')
  const after = pages[pages.length - 1]
  const list = usePolled<Page>(
    (signal) => get(`/v1/snapshots?limit=${PAGE}${after ? `&after=${encodeURIComponent(after)}` : ''}`, signal),
    REFRESH,
    [after],
  )
  const snapshots = list.value?.snapshots
  return (
    <>
      <h1>Snapshots</h1>
      <Failure error={list.error} />
      {!snapshots && !list.error && <Loading />}
      {snapshots?.length === 0 && <p class="muted">There are no snapshots.</p>}
      {snapshots && snapshots.length > 0 && (
        <Table label="Snapshots" head={['Name', 'Backend', 'Size', 'Age', 'SHA-256', '']}>
          {snapshots.map((snapshot) => (
            <tr key={snapshot.id}>
              <th scope="row" title={snapshot.id}>
                {shown(snapshot)}
              </th>
              <td>{snapshot.backend}</td>
              <td class="short">{bytes(snapshot.bytes)}</td>
              <td class="short" title={time(snapshot.created)}>{since(snapshot.created)}</td>
              <td class="mono" title={snapshot.sha256}>
                {snapshot.sha256.slice(0, 12)}…
              </td>
              <td>
                <div class="buttons">
                  <button
                    aria-label={`Create sandbox from ${shown(snapshot)}`}
                    onClick={() => {
                      setText('')
                      setRestoring(snapshot)
                    }}
                  >
                    Create sandbox
                  </button>
                  <button class="danger" aria-label={`Delete ${shown(snapshot)}`} onClick={() => setDeleting(snapshot)}>
                    Delete
                  </button>
                </div>
              </td>
            </tr>
          ))}
        </Table>
      )}
      {(after || list.value?.next) && (
        <div class="buttons">
          <button disabled={!after} onClick={() => setPages(pages.slice(0, -1))}>
            Previous
          </button>
          <button disabled={!list.value?.next} onClick={() => setPages([...pages, list.value!.next!])}>
            Next
          </button>
        </div>
      )}
      <Tree />
      {restoring && (
        <Dialog
          title={`Create a sandbox from ${shown(restoring)}`}
          action="Create"
          onClose={() => setRestoring(null)}
          onDone={async () => {
            const body = { snapshot: restoring.id, ...(text ? { name: text } : {}) }
            const made = await post<Sandbox>('/v1/sandboxes', body)
            go('sandboxes', made!.id)
          }}
        >
          <Field label="Name">
            <Input value={text} onText={setText} autofocus />
          </Field>
        </Dialog>
      )}
      {deleting && (
        <Dialog
          title={`Delete ${shown(deleting)}?`}
          action="Delete"
          danger
          onClose={() => setDeleting(null)}
          onDone={() => send(`/v1/snapshots/${encodeURIComponent(deleting.id)}`, { method: 'DELETE' }).then(list.reload)}
        >
          <p>Sandboxes that were created from it stay.</p>
        </Dialog>
      )}
    </>
  )
}

function shown(snapshot: Snapshot): string {
  return snapshot.name ? name(snapshot.name) : shortId(snapshot.id)
}

interface Node {
  id: string
  name: string | null
  kind: 'sandbox' | 'snapshot' | 'gone'
}

/** The most sandboxes and snapshots of the tree. */
const TREE = 1000

function Tree() {
  const loaded = usePolled<[Snapshot[], Sandbox[]]>(
    async (signal) => {
      const [{ snapshots }, { sandboxes }] = await Promise.all([
        get<Page>(`/v1/snapshots?limit=${TREE}`, signal),
        get<{ sandboxes: Sandbox[] }>(`/v1/sandboxes?limit=${TREE}`, signal),
      ])
      return [snapshots, sandboxes]
    },
    REFRESH,
    [],
  )
  if (!loaded.value) return <Failure error={loaded.error} />
  const [snapshots, sandboxes] = loaded.value
  const nodes = new Map<string, Node>()
  const children = new Map<string, Node[]>()
  for (const { id, name } of snapshots) nodes.set(id, { id, name, kind: 'snapshot' })
  for (const { id, name } of sandboxes) nodes.set(id, { id, name, kind: 'sandbox' })
  const roots: Node[] = []
  for (const { id, parent } of [...snapshots, ...sandboxes]) {
    const node = nodes.get(id)!
    if (parent === null) {
      roots.push(node)
      continue
    }
    if (!nodes.has(parent)) {
      const gone: Node = { id: parent, name: null, kind: 'gone' }
      nodes.set(parent, gone)
      roots.push(gone)
    }
    children.set(parent, [...(children.get(parent) ?? []), node])
  }
  // A sandbox that nothing was created from has no tree.
  const trees = roots.filter((node) => children.has(node.id))
  if (trees.length === 0) return null
  return (
    <>
      <h2>Tree</h2>
      <p class="muted">Snapshots under the sandbox that they were taken of, and sandboxes under what they were created from.</p>
      <ul class="tree" aria-label="Tree of snapshots and sandboxes">
        {trees.map((node) => (
          <Branch key={node.id} node={node} tree={children} />
        ))}
      </ul>
    </>
  )
}

function Branch({ node, tree }: { node: Node; tree: Map<string, Node[]> }) {
  const below = tree.get(node.id)
  const text = node.name ? name(node.name) : shortId(node.id)
  return (
    <li>
      {node.kind === 'sandbox' && (
        <>
          <a href={link('sandboxes', node.id)}>{text}</a> <span class="muted">sandbox</span>
        </>
      )}
      {node.kind === 'snapshot' && (
        <>
          {text} <span class="muted">snapshot</span>
        </>
      )}
      {node.kind === 'gone' && <span class="muted">{text}, deleted</span>}
      {below && (
        <ul>
          {below.map((each) => (
            <Branch key={each.id} node={each} tree={tree} />
          ))}
        </ul>
      )}
    </li>
  )
}
