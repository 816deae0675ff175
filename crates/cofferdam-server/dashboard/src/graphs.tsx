// CPU, memory, processes, storage and network of a sandbox over time. The API reports usage now; the page keeps the past.

import { useEffect, useRef, useState } from 'preact/hooks'
import uPlot from 'uplot'

import { get, sandboxPath } from './api'
import { bytes } from './format'
import type { NetworkUsage, Usage } from './types'
import { Failure, Loading, usePolled } from './ui'

const REFRESH = 1000
/** The number of points that are kept. */
const POINTS = 600

interface Point {
  time: number
  usage: Usage
  network?: NetworkUsage
}

type Series = (number | null)[]

interface GraphKind {
  title: string
  color: number
  value: (point: Point, before: Point | undefined) => number | null
  text: (value: number) => string
  /** The least maximum of the axis. */
  least: number
  /** The distances of the lines of the axis. */
  steps: number[]
}

const POWERS = Array.from({ length: 46 }, (_, i) => 2 ** i)
const COUNTS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000]
/** The least time that the graphs show, in seconds. */
const SPAN = 60

/** Returns the bytes of each second between two points, of a sandbox with a network. */
function rate(point: Point, before: Point | undefined, key: 'sent_bytes' | 'received_bytes'): number | null {
  if (!before || !point.network || !before.network) return null
  return Math.max(0, (point.network[key] - before.network[key]) / Math.max(point.time - before.time, 0.001))
}

const perSecond = (value: number) => `${bytes(Math.round(value))}/s`

const GRAPHS: GraphKind[] = [
  {
    title: 'CPU',
    color: 0,
    value: ({ time, usage }, before) => {
      const [now, then] = [usage.cpu_seconds, before?.usage.cpu_seconds ?? null]
      if (now === null || then === null || !before) return null
      return Math.max(0, ((now - then) / Math.max(time - before.time, 0.001)) * 100)
    },
    text: (value) => `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`,
    least: 10,
    steps: COUNTS,
  },
  { title: 'Memory', color: 1, value: ({ usage }) => usage.memory_bytes, text: bytes, least: 1024, steps: POWERS },
  { title: 'Processes', color: 2, value: ({ usage }) => usage.processes, text: (value) => String(Math.round(value)), least: 4, steps: COUNTS },
  { title: 'Storage', color: 3, value: ({ usage }) => usage.disk_bytes, text: bytes, least: 1024, steps: POWERS },
  { title: 'Network sent', color: 0, value: (point, before) => rate(point, before, 'sent_bytes'), text: perSecond, least: 1024, steps: POWERS },
  { title: 'Network received', color: 1, value: (point, before) => rate(point, before, 'received_bytes'), text: perSecond, least: 1024, steps: POWERS },
]
/** The graphs of a sandbox with a network. */
const NETWORK = ['Network sent', 'Network received']

export function GraphsPanel({ id }: { id: string }) {
  const points = useRef<Point[]>([])
  const loaded = usePolled(
    async (signal) => {
      const stats = await get<{ usage: Usage; network?: NetworkUsage }>(sandboxPath(id, '/stats'), signal)
      points.current = [...points.current, { time: Date.now() / 1000, ...stats }].slice(-POINTS)
      return points.current
    },
    REFRESH,
    [id],
  )
  if (!loaded.value) return loaded.error ? <Failure error={loaded.error} /> : <Loading />
  const kept = loaded.value
  const isNetworked = kept.some((point) => point.network)
  return (
    <>
      <Failure error={loaded.error} />
      <div class="graphs">
        {GRAPHS.filter((kind) => isNetworked || !NETWORK.includes(kind.title)).map((kind) => {
          const series = kept.map((point, i) => kind.value(point, kept[i - 1]))
          return <Graph key={kind.title} kind={kind} times={kept.map((point) => point.time)} series={series} />
        })}
      </div>
      <p class="hint">The graphs begin when this view is opened.{!isNetworked && ' The sandbox has no network.'}</p>
    </>
  )
}

function Graph({ kind, times, series }: { kind: GraphKind; times: number[]; series: Series }) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  const dark = useDark()
  const last = series[series.length - 1]
  useEffect(() => {
    const style = getComputedStyle(document.documentElement)
    const color = (property: string) => style.getPropertyValue(property).trim()
    const axis = { stroke: color('--muted'), grid: { stroke: color('--line'), width: 1 }, ticks: { show: false } }
    const stroke = color(`--graph-${kind.color}`)
    const made = new uPlot(
      {
        width: box.current!.clientWidth,
        height: 160,
        legend: { show: false },
        cursor: { show: false },
        scales: {
          x: { range: (_plot, min, max) => [Math.min(min, max - SPAN), max] },
          y: { range: (_plot, _min, max) => [0, Math.max(max * 1.15, kind.least)] },
        },
        axes: [
          { ...axis, space: 80, size: 32, values: (_plot, ticks) => ticks.map(clock) },
          { ...axis, size: 76, incrs: kind.steps, values: (_plot, ticks) => ticks.map(kind.text) },
        ],
        series: [{}, { stroke, fill: `${stroke}33`, width: 2, points: { show: false } }],
      },
      [times, series],
      box.current!,
    )
    plot.current = made
    const observer = new ResizeObserver(([entry]) => made.setSize({ width: entry!.contentRect.width, height: 160 }))
    observer.observe(box.current!)
    return () => {
      observer.disconnect()
      made.destroy()
    }
  }, [dark])
  useEffect(() => plot.current?.setData([times, series]), [times])
  const now = last === null || last === undefined ? 'not measured' : kind.text(last)
  return (
    <figure>
      <figcaption>
        {kind.title} <strong>{now}</strong>
      </figcaption>
      <div ref={box} role="img" aria-label={`${kind.title} over time, now ${now}`} />
    </figure>
  )
}

function clock(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString()
}

function useDark(): boolean {
  const query = matchMedia('(prefers-color-scheme: dark)')
  const [dark, setDark] = useState(query.matches)
  useEffect(() => {
    const changed = () => setDark(query.matches)
    query.addEventListener('change', changed)
    return () => query.removeEventListener('change', changed)
  }, [])
  return dark
}
