// SPDX-License-Identifier: Apache-2.0
import { InvalidParamsError } from '@cofferdam/plugin';
import type { Context, Plugin } from '@cofferdam/plugin';

interface Order {
  item: string;
  quantity: number;
}

interface Receipt {
  number: number;
  total: number;
}

const PRICES: Record<string, number> = { apple: 2, pear: 3 };

async function order({ item, quantity }: Order, ctx: Context): Promise<Receipt> {
  const price = PRICES[item];
  if (price === undefined) throw new InvalidParamsError(`no item ${item}`);
  const { value } = await ctx.kv.get<number>('orders');
  const number = (value ?? 0) + 1;
  await ctx.kv.set('orders', number);
  ctx.log.info('order', { item, quantity });
  return { number, total: price * quantity };
}

function broken(): never {
  throw new Error('this line is in TypeScript'); // Line 28, which the test looks for.
}

export function activate(plugin: Plugin): void {
  plugin.method('order', { timeout: '5s' }, order);
  plugin.method('broken', broken);
}
