// Search of the audit log.

import { useState } from 'preact/hooks'

import { ApiError, get } from './api'
import { duration, name, shortId, time, visible } from './format'
import { link } from './router'
import type { AuditLine, AuditPage as Found } from './types'
import { Badge, Failure, Field, Input, Loading, Table, usePolled } from './ui'

/** The most lines of a page. */
const LIMIT = 100
const KINDS = ['action', 'begin', 'call', 'cancelled', 'end', 'network', 'network-lost', 'plugin-denied']

interface Search {
  text: string
  sandbox: string
  id: string
  kind: string
  from: string
  until: string
  tenant: string
  all: boolean
}

const NOTHING: Search = { text: '', sandbox: '', id: '', kind: '', from: '', until: '', tenant: '', all: false }

export function AuditPage() {
  const [typed, setTyped] = useState(NOTHING)
  const [search, setSearch] = useState(NOTHING)
  const [pages, setPages] = useState<number[]>([])
  const before = pages[pages.length - 1]
  const list = usePolled<Found>((signal) => get(path(search, before), signal), 0, [search, before])
  const change = (part: Partial<Search>) => setTyped({ ...typed, ...part })
  const start = (next: Search) => {
    setPages([])
    setTyped(next)
    setSearch({ ...next })
  }
  const submit = (event: Event) => {
    event.preventDefault()
    start(typed)
  }
  const denied = list.error instanceof ApiError && list.error.status === 403
  const lines = list.value?.lines ?? []
  return (
    <>
      <h1>Audit log</h1>
      <form class="search" onSubmit={submit}>
        <Field label="Text">
          <Input value={typed.text} onText={(text) => change({ text })} placeholder="anywhere in a line" />
        </Field>
        <Field label="Kind">
          <select value={typed.kind} onChange={(event) => change({ kind: event.currentTarget.value })}>
            <option value="">All</option>
            {KINDS.map((kind) => (
              <option value={kind}>{kind}</option>
            ))}
          </select>
        </Field>
        <Field label="From" wide>
          <Input value={typed.from} onText={(from) => change({ from })} type="datetime-local" />
        </Field>
        <Field label="Until" wide>
          <Input value={typed.until} onText={(until) => change({ until })} type="datetime-local" />
        </Field>
        <Field label="Sandbox">
          <Input value={typed.sandbox} onText={(sandbox) => change({ sandbox })} placeholder="id, or name in a call" />
        </Field>
        <Field label="Execution">
          <Input value={typed.id} onText={(id) => change({ id })} />
        </Field>
        <Field label="Tenants">
          <select value={typed.all ? 'all' : 'own'} onChange={(event) => change({ all: event.currentTarget.value === 'all' })}>
            <option value="own">This tenant</option>
            <option value="all">All (scope admin)</option>
          </select>
        </Field>
        {typed.all && (
          <Field label="Tenant">
            <Input value={typed.tenant} onText={(tenant) => change({ tenant })} />
          </Field>
        )}
        <div class="buttons">
          <button type="submit" class="primary">
            Search
          </button>
          <button type="button" onClick={() => start(NOTHING)}>
            Clear
          </button>
        </div>
      </form>
      {denied ? (
        <p class="muted">The key lacks the scope {search.all ? 'admin' : 'audit:read'}.</p>
      ) : (
        <Failure error={list.error} />
      )}
      {!list.value && !list.error && <Loading />}
      {list.value && lines.length === 0 && (
        <p class="muted">{list.value.before === undefined ? 'No line was found.' : 'No line was found in this part of the log.'}</p>
      )}
      {lines.length > 0 && (
        <Table label="Lines of the audit log" head={['Time', 'Kind', ...(search.all ? ['Tenant'] : []), 'Sandbox', 'Content', 'Line']}>
          {lines.map((line) => (
            <Row key={line.seq} line={line} all={search.all} />
          ))}
        </Table>
      )}
      {(before !== undefined || list.value?.before !== undefined) && (
        <div class="buttons">
          <button disabled={before === undefined} onClick={() => setPages(pages.slice(0, -1))}>
            Newer
          </button>
          <button disabled={list.value?.before === undefined} onClick={() => setPages([...pages, list.value!.before!])}>
            Older
          </button>
        </div>
      )}
    </>
  )
}

function path(search: Search, before: number | undefined): string {
  const query = new URLSearchParams({ limit: String(LIMIT) })
  for (const key of ['text', 'sandbox', 'id', 'kind'] as const) {
    if (search[key].trim()) query.set(key, search[key].trim())
  }
  for (const key of ['from', 'until'] as const) {
    // The input has the time of this computer's zone.
    if (search[key]) query.set(key, new Date(search[key]).toISOString())
  }
  if (search.all && search.tenant.trim()) query.set('tenant', search.tenant.trim())
  if (before !== undefined) query.set('before', String(before))
  return `/v1/${search.all ? 'admin/' : ''}audit?${query}`
}

function Row({ line, all }: { line: AuditLine; all: boolean }) {
  const { kind, tenant, sandbox } = line.record
  const [state, text] = summary(line)
  return (
    <tr>
      <th scope="row" class="short">
        <RecordTime line={line} />
      </th>
      <td class="short">{name(kind)}</td>
      {all && <td>{name(String(tenant ?? ''))}</td>}
      <td class="short">{sandbox !== undefined && <a href={link('sandboxes', String(sandbox))}>{shortId(name(String(sandbox)))}</a>}</td>
      <td>
        {state !== undefined && <Badge kind={state[0]}>{state[1]}</Badge>} {text}
        <details>
          <summary>Line {line.seq} as JSON</summary>
          <pre>{visible(JSON.stringify(line.record, null, 2))}</pre>
        </details>
      </td>
      <td>{line.seq}</td>
    </tr>
  )
}

/** Shows the time of a line in this computer's zone. */
export function RecordTime({ line }: { line: AuditLine }) {
  const text = String(line.record.time ?? line.record.start ?? '')
  const parsed = Date.parse(text)
  return <span title={name(text)}>{Number.isNaN(parsed) ? name(text) : time(parsed / 1000)}</span>
}

type Outcome = ['good' | 'bad' | 'warn' | 'plain', string]

function summary({ record }: AuditLine): [Outcome | undefined, string] {
  const text = (key: string) => name(String(record[key] ?? ''))
  switch (record.kind) {
    case 'call':
      return [[Number(record.status) < 400 ? 'good' : 'bad', text('status')], `${text('method')} ${text('endpoint')}`]
    case 'network':
      return [connection(record), [`${text('host')}:${text('port')}`, text('reason')].filter(Boolean).join(': ')]
    case 'network-lost':
      return [['warn', 'lost'], `${text('count')} connections without a line`]
    case 'plugin-denied':
      return [['bad', 'refused'], `${text('plugin')}, ${text('method')} ${text('target')}: ${text('permission')}`]
    case 'action': {
      const state = text('state')
      return [[state === 'failed' ? 'bad' : 'plain', state], [text('action'), policy(record), text('failed')].filter(Boolean).join(': ')]
    }
    case 'begin':
      return [undefined, `${text('language')} ${shortId(text('id'))}`]
  }
  const exit = record.exit as { code: number | null; signal: number | null } | undefined
  if (record.kind !== 'end' || !exit) return [undefined, shortId(text('id'))]
  const how = exit.code !== null ? `exit ${exit.code}` : exit.signal !== null ? `signal ${exit.signal}` : 'ended'
  return [[exit.code === 0 ? 'plain' : 'bad', how], `after ${duration(Number(record.duration_us ?? 0) / 1e6)}, ${shortId(text('id'))}`]
}

/** Returns the network policy that an action sets. */
function policy(record: AuditLine['record']): string {
  const set = record.network as { kind: string; rules: { count: number; first: string[] } } | undefined
  if (!set) return ''
  const more = set.rules.count - set.rules.first.length
  return name([set.kind, set.rules.first.join(', '), more > 0 ? `and ${more} more` : ''].filter(Boolean).join(' '))
}

/** Returns what became of a connection or request. */
export function connection(record: AuditLine['record']): Outcome {
  if (!record.allowed) return ['bad', 'refused']
  return record.ended ? ['warn', name(String(record.ended))] : ['good', 'allowed']
}
