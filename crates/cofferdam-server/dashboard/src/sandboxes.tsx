// The list of live sandboxes.

import { useState } from 'preact/hooks'

import { get, post, sandboxPath, send } from './api'
import { duration, name, shortId, since, time } from './format'
import { go, link } from './router'
import type { Backend, Sandbox, Snapshot } from './types'
import { Badge, Dialog, Failure, Field, Input, Loading, Table, useAction, usePolled } from './ui'

const REFRESH = 3000
const PAGE = 100

interface Page {
  sandboxes: Sandbox[]
  next: string | null
}

export function SandboxesPage() {
  const [pages, setPages] = useState<string[]>([])
  const [labels, setLabels] = useState('')
  const [creating, setCreating] = useState(false)
  const after = pages[pages.length - 1]
  const list = usePolled<Page>(
    (signal) => {
      const query = new URLSearchParams({ limit: String(PAGE) })
      if (after) query.set('after', after)
      // A label that is not complete is no filter yet.
      const complete = labels.split(',').map((pair) => pair.trim()).filter((pair) => /^[^=]+=./.test(pair))
      if (complete.length > 0) query.set('labels', complete.join(','))
      return get(`/v1/sandboxes?${query}`, signal)
    },
    REFRESH,
    [after, labels],
  )
  const backends = useBackends()
  return (
    <>
      <div class="title">
        <h1>Sandboxes</h1>
        <button class="primary" onClick={() => setCreating(true)}>
          New sandbox
        </button>
      </div>
      <div class="filter">
        <Field label="Labels">
          <Input value={labels} onText={(text) => (setPages([]), setLabels(text))} placeholder="key=value,…" />
        </Field>
      </div>
      <Failure error={list.error} />
      {list.value === null && !list.error && <Loading />}
      {list.value?.sandboxes.length === 0 && <p class="muted">There are no sandboxes here.</p>}
      {list.value && list.value.sandboxes.length > 0 && (
        <Table label="Sandboxes" head={['Name', 'State', 'Backend', 'Labels', 'Age', 'Ends in', '']}>
          {list.value.sandboxes.map((sandbox) => (
            <Row key={sandbox.id} sandbox={sandbox} backends={backends} changed={list.reload} />
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
      {creating && <Create backends={backends} onClose={() => setCreating(false)} />}
    </>
  )
}

export function useBackends(): Backend[] {
  return usePolled<{ backends: Backend[] }>((signal) => get('/v1/backends', signal), 0, []).value?.backends ?? []
}

export function can(backends: Backend[], sandbox: Sandbox, capability: string): boolean {
  return backends.some((backend) => backend.name === sandbox.backend && backend.capabilities.includes(capability))
}

export function State({ sandbox }: { sandbox: Sandbox }) {
  const programs = sandbox.running === 1 ? '1 command' : `${sandbox.running} commands`
  return (
    <>
      <Badge kind={sandbox.state === 'running' ? 'good' : 'warn'}>{sandbox.state}</Badge>
      {sandbox.running > 0 && <span class="muted"> {programs}</span>}
    </>
  )
}

export function Labels({ labels }: { labels: Record<string, string> }) {
  const pairs = Object.entries(labels)
  return (
    <>
      {pairs.map(([key, value]) => (
        <span class="label-pair" title={`${name(key)}=${name(value)}`}>
          {name(key)}={name(value)}
        </span>
      ))}
    </>
  )
}

function Row({ sandbox, backends, changed }: { sandbox: Sandbox; backends: Backend[]; changed: () => void }) {
  return (
    <tr>
      <th scope="row">
        <a href={link('sandboxes', sandbox.id)}>{sandbox.name ? name(sandbox.name) : shortId(sandbox.id)}</a>
      </th>
      <td>
        <State sandbox={sandbox} />
      </td>
      <td>
        {sandbox.backend} {sandbox.backend !== sandbox.level && <span class="muted">({sandbox.level})</span>}
      </td>
      <td>
        <Labels labels={sandbox.labels} />
      </td>
      <td class="short" title={time(sandbox.created)}>{since(sandbox.created)}</td>
      <td class="short" title={time(sandbox.ends)}>{duration(sandbox.ends - Date.now() / 1000)}</td>
      <td>
        <Actions sandbox={sandbox} backends={backends} changed={changed} deleted={changed} />
      </td>
    </tr>
  )
}

interface ActionsProps {
  sandbox: Sandbox
  backends: Backend[]
  changed: () => void
  deleted: () => void
}

export function Actions({ sandbox, backends, changed, deleted }: ActionsProps) {
  const [dialog, setDialog] = useState<'' | 'rename' | 'fork' | 'snapshot' | 'extend' | 'delete'>('')
  const { busy, error, run } = useAction()
  const [text, setText] = useState('')
  const [minutes, setMinutes] = useState('60')
  const shown = sandbox.name ? name(sandbox.name) : shortId(sandbox.id)
  const path = sandboxPath(sandbox.id)
  const close = () => setDialog('')
  const open = (which: typeof dialog, initial = '') => {
    setText(initial)
    setDialog(which)
  }
  const paused = sandbox.state === 'paused'
  const turn = paused ? 'resume' : 'pause'
  return (
    <div class="buttons">
      {can(backends, sandbox, 'pause') && (
        <button
          aria-label={`${paused ? 'Resume' : 'Pause'} ${shown}`}
          disabled={busy}
          onClick={() => run(() => send(`${path}/${turn}`, { method: 'POST' })).then(changed)}
        >
          {paused ? 'Resume' : 'Pause'}
        </button>
      )}
      {can(backends, sandbox, 'fork') && (
        <button aria-label={`Fork ${shown}`} onClick={() => open('fork')}>
          Fork
        </button>
      )}
      {can(backends, sandbox, 'snapshot') && (
        <button aria-label={`Take a snapshot of ${shown}`} onClick={() => open('snapshot')}>
          Snapshot
        </button>
      )}
      <button aria-label={`Rename ${shown}`} onClick={() => open('rename', sandbox.name ?? '')}>
        Rename
      </button>
      <button aria-label={`Extend ${shown}`} onClick={() => open('extend')}>
        Extend
      </button>
      <button class="danger" aria-label={`Delete ${shown}`} onClick={() => open('delete')}>
        Delete
      </button>
      <Failure error={error} />
      {dialog === 'rename' && (
        <Dialog
          title={`Rename ${shown}`}
          action="Rename"
          onClose={close}
          onDone={() => post(`${path}/rename`, { name: text || null }).then(changed)}
        >
          <Field label="Name" hint="Empty removes the name.">
            <Input value={text} onText={setText} autofocus />
          </Field>
        </Dialog>
      )}
      {dialog === 'fork' && (
        <Dialog
          title={`Fork ${shown}`}
          action="Fork"
          onClose={close}
          onDone={() => post<Sandbox>(`${path}/fork`, text ? { name: text } : {}).then((made) => go('sandboxes', made!.id))}
        >
          <Field label="Name of the copy">
            <Input value={text} onText={setText} autofocus />
          </Field>
        </Dialog>
      )}
      {dialog === 'snapshot' && (
        <Dialog
          title={`Take a snapshot of ${shown}`}
          action="Take snapshot"
          onClose={close}
          onDone={() => post(`${path}/snapshot`, text ? { name: text } : {}).then(() => go('snapshots'))}
        >
          <Field label="Name of the snapshot">
            <Input value={text} onText={setText} autofocus />
          </Field>
        </Dialog>
      )}
      {dialog === 'extend' && (
        <Dialog
          title={`Extend ${shown}`}
          action="Extend"
          onClose={close}
          onDone={() => post(`${path}/extend`, { life: Number(minutes) * 60 }).then(changed)}
        >
          <Field label="Lifetime from now, in minutes">
            <Input value={minutes} onText={setMinutes} type="number" min={1} max={1440} required autofocus />
          </Field>
        </Dialog>
      )}
      {dialog === 'delete' && (
        <Dialog
          title={`Delete ${shown}?`}
          action="Delete"
          danger
          onClose={close}
          onDone={() => send(path, { method: 'DELETE' }).then(deleted)}
        >
          <p>All its programs end, and its files are lost.</p>
        </Dialog>
      )}
    </div>
  )
}

function parseLabels(text: string): Record<string, string> {
  const labels: Record<string, string> = {}
  for (const pair of text.split(',').map((pair) => pair.trim())) {
    if (pair === '') continue
    const at = pair.indexOf('=')
    if (at < 1) throw new Error('Labels must be key=value, separated by commas.')
    labels[pair.slice(0, at)] = pair.slice(at + 1)
  }
  return labels
}

function Create({ backends, onClose }: { backends: Backend[]; onClose: () => void }) {
  const [called, setCalled] = useState('')
  const [backend, setBackend] = useState('')
  const [labels, setLabels] = useState('')
  const [snapshot, setSnapshot] = useState('')
  const snapshots = usePolled<{ snapshots: Snapshot[] }>((signal) => get('/v1/snapshots?limit=1000', signal), 0, []).value
  const create = async () => {
    const body: Record<string, unknown> = { labels: parseLabels(labels) }
    if (called) body['name'] = called
    if (snapshot) body['snapshot'] = snapshot
    else if (backend) body['backend'] = backend
    const made = await post<Sandbox>('/v1/sandboxes', body)
    go('sandboxes', made!.id)
  }
  return (
    <Dialog title="New sandbox" action="Create" onClose={onClose} onDone={create}>
      <Field label="Name">
        <Input value={called} onText={setCalled} autofocus name="name" />
      </Field>
      {snapshots && snapshots.snapshots.length > 0 && (
        <Field label="Snapshot">
          <select value={snapshot} onChange={(event) => setSnapshot(event.currentTarget.value)}>
            <option value="">None</option>
            {snapshots.snapshots.map((each) => (
              <option value={each.id}>
                {each.name ? name(each.name) : shortId(each.id)} ({each.backend})
              </option>
            ))}
          </select>
        </Field>
      )}
      {!snapshot && (
        <Field label="Backend">
          <select value={backend} onChange={(event) => setBackend(event.currentTarget.value)} name="backend">
            <option value="">Default</option>
            {backends.map((each) => (
              <option value={each.name}>
                {each.name} ({each.level})
              </option>
            ))}
          </select>
        </Field>
      )}
      <Field label="Labels" hint="key=value, separated by commas">
        <Input value={labels} onText={setLabels} name="labels" />
      </Field>
    </Dialog>
  )
}
