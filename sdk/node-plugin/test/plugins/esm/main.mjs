/** ECMAScript module whose instance of the package must be that of the running SDK. */
import { helper } from './helper.mjs';
import { NotFoundError } from '@cofferdam/plugin';

export function activate(plugin) {
  plugin.method('missing', () => {
    throw new NotFoundError('no such thing');
  });
  plugin.method('denied', helper);
}
