// The network of a sandbox: its policy, its use and its last connections.

import { useState } from 'preact/hooks'

import { ApiError, get, sandboxPath } from './api'
import { connection, RecordTime } from './audit'
import { bytes, name, words } from './format'
import type { AuditPage, NetworkPolicy, NetworkUsage } from './types'
import { Badge, Failure, Loading, Table, usePolled } from './ui'

const REFRESH = 3000
/** The most connections that are shown. */
const LIMIT = 100

export function NetworkPanel({ id }: { id: string }) {
  const policy = usePolled<NetworkPolicy>((signal) => get(sandboxPath(id, '/network'), signal), REFRESH, [id])
  const stats = usePolled<{ network?: NetworkUsage }>((signal) => get(sandboxPath(id, '/stats'), signal), REFRESH, [id])
  const used = stats.value?.network
  return (
    <>
      <h2>Policy</h2>
      <Failure error={policy.error} />
      {policy.value ? <Policy policy={policy.value} /> : !policy.error && <Loading />}
      {(used || stats.error) && (
        <>
          <h2>Use</h2>
          <Failure error={stats.error} />
        </>
      )}
      {used && (
        <dl class="facts">
          <dt>Connections</dt>
          <dd>{used.connections}</dd>
          <dt>Refused, with look-ups</dt>
          <dd>{used.refused}</dd>
          <dt>Sent</dt>
          <dd>{bytes(used.sent_bytes)}</dd>
          <dt>Received</dt>
          <dd>{bytes(used.received_bytes)}</dd>
        </dl>
      )}
      <Connections id={id} />
    </>
  )
}

/** Describes a policy in a few words. */
export function policyText(policy: NetworkPolicy): string {
  switch (policy.kind) {
    case 'none':
      return 'none'
    case 'learn':
      return policy.allow ? 'allows every name, and records it' : 'refuses everything, and records it'
    case 'allow':
      return policy.hosts.length ? `allows ${policy.hosts.map(name).join(', ')}` : 'allows no host'
    case 'rules':
      return policy.allow.length ? `allows ${policy.allow.map((rule) => name(rule.host)).join(', ')}` : 'allows no host'
  }
}

function Policy({ policy }: { policy: NetworkPolicy }) {
  if (policy.kind === 'none') return <p class="muted">The sandbox has no network.</p>
  if (policy.kind === 'allow' && policy.hosts.length > 0) {
    return (
      <>
        <p>The sandbox reaches these hosts only.</p>
        <ul aria-label="Allowed hosts">
          {policy.hosts.map((host) => (
            <li class="mono">{name(host)}</li>
          ))}
        </ul>
      </>
    )
  }
  if (policy.kind !== 'rules' || policy.allow.length === 0) return <p>The policy {policyText(policy)}.</p>
  return (
    <Table label="Rules" head={['Host', 'Protocol', 'Methods', 'Paths', 'Limits']}>
      {policy.allow.map(({ host, protocol, methods, paths, ...limits }) => (
        <tr>
          <th scope="row">{name(host)}</th>
          <td>{protocol ?? 'any'}</td>
          <td>{methods?.length ? methods.map(name).join(', ') : 'all'}</td>
          <td>{paths?.length ? paths.map(name).join(', ') : 'all'}</td>
          <td>
            {Object.entries(limits)
              .map(([key, value]) => `${words(key)} ${name(String(value))}`)
              .join(', ')}
          </td>
        </tr>
      ))}
    </Table>
  )
}

/** The connections that the audit log has. */
function Connections({ id }: { id: string }) {
  const [refused, setRefused] = useState(false)
  const query = new URLSearchParams({ kind: 'network', sandbox: id, limit: String(LIMIT) })
  const list = usePolled<AuditPage>((signal) => get(`/v1/audit?${query}`, signal), REFRESH, [id])
  const status = list.error instanceof ApiError ? list.error.status : 0
  const lines = (list.value?.lines ?? []).filter(({ record }) => !refused || !record.allowed)
  return (
    <>
      <div class="title">
        <h2>Connections</h2>
        <label class="check">
          <input type="checkbox" checked={refused} onChange={(event) => setRefused(event.currentTarget.checked)} /> Refused only
        </label>
      </div>
      <p class="muted">The last {LIMIT} in the audit log. A connection is there when it has ended; refused look-ups are only counted.</p>
      {status === 403 ? <p class="muted">The key lacks the scope audit:read.</p> : status === 422 ? <p class="muted">The server has no audit log.</p> : <Failure error={list.error} />}
      {!list.value && !list.error && <Loading />}
      {list.value && lines.length === 0 && <p class="muted">{refused ? 'No connection was refused.' : 'There were no connections.'}</p>}
      {lines.length > 0 && (
        <Table label="Connections" head={['Time', 'Host', 'Outcome', 'Reason or rule', 'Sent', 'Received']}>
          {lines.map((line) => {
            const { record } = line
            const text = (key: string) => (record[key] === undefined ? '' : name(String(record[key])))
            const [kind, outcome] = connection(record)
            return (
              <tr key={line.seq}>
                <td class="short">
                  <RecordTime line={line} />
                </td>
                <th scope="row">
                  {text('host')}:{text('port')}
                  {record.method !== undefined && (
                    <div class="muted">
                      {text('method')} {text('path')}
                    </div>
                  )}
                </th>
                <td>
                  <Badge kind={kind}>{outcome}</Badge>
                </td>
                <td>{record.allowed ? text('rule') : text('reason')}</td>
                <td class="short">{bytes(Number(record.sent_bytes))}</td>
                <td class="short">{bytes(Number(record.received_bytes))}</td>
              </tr>
            )
          })}
        </Table>
      )}
    </>
  )
}
