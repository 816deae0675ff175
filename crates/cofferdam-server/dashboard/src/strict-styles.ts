// xterm.js writes style elements and style attributes, which the content security policy refuses. Here they become
// constructed style sheets and properties, which scripts may set.

class SheetElement {
  static create(): HTMLElement {
    const sheet = new CSSStyleSheet()
    const element = document.createElement('span')
    element.hidden = true
    Object.defineProperty(element, 'textContent', { set: (text: string) => sheet.replaceSync(text), get: () => '' })
    document.adoptedStyleSheets.push(sheet)
    const remove = element.remove.bind(element)
    element.remove = () => {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((other) => other !== sheet)
      remove()
    }
    return element
  }
}

const createElement = document.createElement.bind(document) as (name: string, options?: ElementCreationOptions) => HTMLElement
document.createElement = ((name: string, options?: ElementCreationOptions) =>
  name === 'style' ? SheetElement.create() : createElement(name, options)) as typeof document.createElement

const setAttribute = Element.prototype.setAttribute
Element.prototype.setAttribute = function (name: string, value: string) {
  if (name === 'style' && this instanceof HTMLElement) this.style.cssText = value
  else setAttribute.call(this, name, value)
}
