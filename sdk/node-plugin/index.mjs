// SPDX-License-Identifier: Apache-2.0
import sdk from './cofferdam-plugin.cjs';

export const {
  run,
  PluginError,
  InvalidRequestError,
  MethodNotFoundError,
  InvalidParamsError,
  InternalError,
  CancelledError,
  PermissionDeniedError,
  TimeoutError,
  LimitError,
  NotFoundError,
  UnavailableError,
  ConflictError,
} = sdk;
