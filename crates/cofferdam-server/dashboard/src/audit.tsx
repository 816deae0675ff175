// Search of the audit log.

import { useState } from 'preact/hooks'

import { ApiError, get } from './api'
import { duration, name, visible } from './format'
import type { AuditLine, AuditPage as Found } from './types'
import { Failure, Field, Input, Loading, Table, usePolled } from './ui'

const LIMIT = 100
const KINDS = ['call', 'begin', 'end', 'cancelled', 'network', 'network-lost', 'plugin-denied']

interface Search {
  sandbox: string
  id: string
  kind: string
  tenant: string
  all: boolean
}

const NOTHING: Search = { sandbox: '', id: '', kind: '', tenant: '', all: false }

export function AuditPage() {
  const [typed, setTyped] = useState(NOTHING)
  const [search, setSearch] = useState(NOTHING)
  const [pages, setPages] = useState<number[]>([])
  const before = pages[pages.length - 1]
  const list = usePolled<Found>((signal) => get(path(search, before), signal), 0, [search, before])
  const change = (part: Partial<Search>) => setTyped({ ...typed, ...part })
  const submit = (event: Event) => {
    event.preventDefault()
    setPages([])
    setSearch({ ...typed })
  }
  const denied = list.error instanceof ApiError && list.error.status === 403
  const lines = list.value?.lines ?? []
  return (
    <>
      <h1>Audit log</h1>
      <form class="filter" onSubmit={submit}>
        <Field label="Sandbox">
          <Input value={typed.sandbox} onText={(sandbox) => change({ sandbox })} placeholder="id, or name in a call" />
        </Field>
        <Field label="Execution">
          <Input value={typed.id} onText={(id) => change({ id })} />
        </Field>
        <Field label="Kind">
          <select value={typed.kind} onChange={(event) => change({ kind: event.currentTarget.value })}>
            <option value="">All</option>
            {KINDS.map((kind) => (
              <option value={kind}>{kind}</option>
            ))}
          </select>
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
        <button type="submit" class="primary">
          Search
        </button>
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
        <Table label="Lines of the audit log" head={['Line', 'Time', 'Kind', ...(search.all ? ['Tenant'] : []), 'Sandbox', 'Content']}>
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
  for (const key of ['sandbox', 'id', 'kind'] as const) {
    if (search[key].trim()) query.set(key, search[key].trim())
  }
  if (search.all && search.tenant.trim()) query.set('tenant', search.tenant.trim())
  if (before !== undefined) query.set('before', String(before))
  return `/v1/${search.all ? 'admin/' : ''}audit?${query}`
}

function Row({ line, all }: { line: AuditLine; all: boolean }) {
  const { kind, tenant, sandbox, time, start, ...rest } = line.record
  return (
    <tr>
      <th scope="row">{line.seq}</th>
      <td>{name(String(time ?? start ?? ''))}</td>
      <td>{name(kind)}</td>
      {all && <td>{name(String(tenant ?? ''))}</td>}
      <td class="mono">{name(String(sandbox ?? ''))}</td>
      <td>
        {summary(line)}
        <details>
          <summary>Line {line.seq} as JSON</summary>
          <pre>{visible(JSON.stringify(rest, null, 2))}</pre>
        </details>
      </td>
    </tr>
  )
}

function summary({ record }: AuditLine): string {
  const text = (key: string) => name(String(record[key] ?? ''))
  if (record.kind === 'call') return `${text('method')} ${text('endpoint')}: ${text('status')}`
  if (record.kind === 'network') return `${text('host')}:${text('port')} ${record.allowed ? 'allowed' : 'refused'}`
  const exit = record.exit as { code: number | null; signal: number | null } | undefined
  if (record.kind === 'end' && exit) {
    const how = exit.code !== null ? `exit ${exit.code}` : exit.signal !== null ? `signal ${exit.signal}` : 'ended'
    return `${text('id')}: ${how} after ${duration(Number(record.duration_us ?? 0) / 1e6)}`
  }
  return text('id')
}
