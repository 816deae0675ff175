//! A sandbox that is prepared before its request arrives.
//!
//! Preparing a sandbox moves slow work out of the request's latency. The settings of the request are applied only when
//! the prepared sandbox is claimed. A prepared sandbox guarantees only that a claim gives the same result as a create.
//! The number of prepared sandboxes and the time of their creation are decided elsewhere.
//!
//! ```text
//! Backend::prepare -> prepared --claim--> sandbox, used once
//!                      |--claim fails, close, drop--> nothing is left
//!                      '--dies--> dead: every claim fails
//! ```

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Result, Sandbox, Spec};

/// A prepared sandbox, not yet assigned to a request. No program of a request has run in it and no caller has used it.
/// Dropping it closes it.
#[async_trait]
pub trait PreparedSandbox: Send + Sync + fmt::Debug {
    /// Returns the template: the spec that the sandbox was prepared for.
    fn template(&self) -> &Spec;

    /// Returns true if every setting of `spec` can still be applied, so that a claim gives the same result as a create.
    ///
    /// # Behavior
    /// - A pure function of the template and `spec`: it reads no state of the host and always returns the same answer.
    /// - True for the template itself.
    /// - False when in doubt. The caller then creates a sandbox instead.
    /// - Implementations destructure the spec through [`Spec::parts`], and its limits by field, both without `..`. A
    ///   new setting then does not compile until the implementation states if it can be applied late.
    fn is_compatible(&self, spec: &Spec) -> bool;

    /// Returns true if the sandbox can still be claimed, and false if it has died. Cheap: it contacts no process.
    fn is_alive(&self) -> bool;

    /// Turns the prepared sandbox into the sandbox that `spec` requests.
    ///
    /// # Behavior
    /// - Every setting of `spec` is applied and none of the template remains: limits, access, tenant and labels are
    ///   those of the claim.
    /// - The posture equals that of a create of the same spec. It is measured after the claim's changes, or at
    ///   preparation if the claim changes nothing.
    /// - Nothing is left behind after an error.
    ///
    /// # Errors
    /// - `WeakerThanRequired`, `InvalidInput` and `Unsupported`, as for [`crate::Backend::create`].
    /// - An error for a spec that is not compatible. A setting is never ignored.
    /// - An error with [`crate::Retry::MayHelp`] if the sandbox has died.
    async fn claim(self: Box<Self>, spec: Spec) -> Result<Arc<dyn Sandbox>>;

    /// Closes the unused sandbox. Nothing is left when this returns.
    async fn close(self: Box<Self>) -> Result<()>;
}
