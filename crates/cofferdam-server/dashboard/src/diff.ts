// The files of a difference in the unified form. The numbers of a hunk say where it ends: a line of a guest's file that
// looks like a header is none.

export interface DiffLine {
  kind: '' | 'hunk' | 'added' | 'removed' | 'note' | 'warning'
  text: string
}

export interface DiffFile {
  path: string
  change: 'added' | 'changed' | 'deleted' | 'renamed'
  added: number
  removed: number
  lines: DiffLine[]
}

export interface Diff {
  files: DiffFile[]
  /** The line that counts the changes. */
  total: string
}

const HUNK = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@/

export function parse(text: string): Diff {
  const diff: Diff = { files: [], total: '' }
  let file: DiffFile | undefined
  let [old, fresh] = [0, 0]
  for (const line of text.split('\n')) {
    const hunk = HUNK.exec(line)
    if (file && (old > 0 || fresh > 0) && /^[ +-]/.test(line)) {
      const kind = line.startsWith('+') ? 'added' : line.startsWith('-') ? 'removed' : ''
      if (kind !== 'added') old -= 1
      if (kind !== 'removed') fresh -= 1
      if (kind !== '') file[kind] += 1
      file.lines.push({ kind, text: line })
    } else if (line.startsWith('diff ')) {
      ;[old, fresh] = [0, 0]
      file = { path: half(line.slice('diff '.length)), change: 'changed', added: 0, removed: 0, lines: [] }
      diff.files.push(file)
    } else if (file && hunk) {
      ;[old, fresh] = [Number(hunk[1] ?? 1), Number(hunk[2] ?? 1)]
      file.lines.push({ kind: 'hunk', text: line })
    } else if (/^\d+ files? changed/.test(line)) {
      diff.total = line
      file = undefined
    } else if (file && line !== '' && !/^(---|\+\+\+) /.test(line)) {
      if (/^new \S+ mode/.test(line) && file.change === 'changed' && file.lines.length === 0) file.change = 'added'
      if (/^deleted( \S+ mode|$)/.test(line)) file.change = 'deleted'
      if (line.startsWith('rename to ')) [file.change, file.path] = ['renamed', line.slice('rename to '.length)]
      file.lines.push({ kind: outside(line), text: line })
    }
  }
  return diff
}

/** Returns the kind of a line that is in no hunk. */
function outside(line: string): DiffLine['kind'] {
  if (line.startsWith('+link to ')) return 'added'
  if (line.startsWith('-link to ')) return 'removed'
  return /^(conflict|guarded|warning): /.test(line) ? 'warning' : 'note'
}

/** Returns the path of `a/PATH b/PATH`. */
function half(names: string): string {
  const path = names.slice(2, (names.length - 1) / 2)
  return names === `a/${path} b/${path}` ? path : names
}
