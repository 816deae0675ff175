// Values as text. What a guest chose (names, output) is shown as it is, with what could deceive made visible.

const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g

/**
 * Makes control characters visible as `cat -v` does, and those that change the direction of text by their numbers. Tabs
 * and newlines stay.
 */
export function visible(text: string): string {
  return text.replace(CONTROLS, (c) => {
    const code = c.charCodeAt(0)
    if (code < 0x80) return `^${String.fromCharCode(code ^ 0x40)}`
    return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, '0')}\u27e9`
  })
}

/** Makes a name fit for one line. */
export function name(text: string): string {
  return visible(text).replace(/\t/g, '^I').replace(/\n/g, '^J')
}

/** Returns output as text: lines as a program means them, without colours. */
export function output(text: string): string {
  const plain = text.replace(/\r\n/g, '\n').replace(/\u001b\[[0-9;]*m/g, '')
  return visible(plain)
}

export function bytes(count: number): string {
  if (count < 1024) return `${count} B`
  let value = count
  for (const unit of ['KiB', 'MiB', 'GiB', 'TiB']) {
    value /= 1024
    if (value < 1024 || unit === 'TiB') return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`
  }
  return ''
}

export function duration(seconds: number): string {
  const s = Math.max(0, Math.round(seconds))
  if (seconds > 0 && seconds < 1) return `${Math.round(seconds * 1000)} ms`
  if (s < 60) return `${s} s`
  if (s < 3600) return `${Math.floor(s / 60)} min`
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`
}

export function since(time: number): string {
  return duration(Date.now() / 1000 - time)
}

export function time(seconds: number): string {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' })
}

export function day(days: number): string {
  return new Date(days * 86400 * 1000).toISOString().slice(0, 10)
}

export function shortId(id: string): string {
  return id.length > 14 ? `${id.slice(0, 12)}…` : id
}

export function words(kebab: string): string {
  return kebab.replace(/[-_]/g, ' ')
}
