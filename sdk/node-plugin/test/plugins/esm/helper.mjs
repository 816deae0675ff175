import { PermissionDeniedError } from '@cofferdam/plugin';

export async function helper(_, ctx) {
  try {
    await ctx.fs.read('secret');
  } catch (error) {
    return error instanceof PermissionDeniedError;
  }
}
