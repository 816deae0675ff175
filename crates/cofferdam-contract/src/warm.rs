//! A sandbox made before its request came.
//!
//! It exists so that what takes long is done when nobody waits. What a request asks for is decided at the claim and not
//! before: a warm sandbox promises nothing but that a claim is worth a create. When to make how many is not decided
//! here.
//!
//! ```text
//! Backend::warm -> warm --claim--> sandbox, used once
//!                   |--claim fails, close, drop--> nothing is left
//!                   '--dies--> dead: every claim fails
//! ```

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Result, Sandbox, Spec};

/// A sandbox made before its request came: nothing of a request has run in it, nobody has used it. Dropping it closes
/// it.
#[async_trait]
pub trait Warm: Send + Sync + fmt::Debug {
    /// The spec that it was made for, its template.
    fn made_for(&self) -> &Spec;

    /// Whether every word of `spec` can still be applied, so that a claim gives what a create would.
    ///
    /// # Behavior
    /// - A pure function of the template and `spec`: it looks at no host, and gives the same answer each time.
    /// - True for the template itself.
    /// - False when in doubt; whoever asks then creates.
    /// - Implementations take the spec apart through [`Spec::parts`] and its limits by their fields, both without `..`,
    ///   so that a setting that is new does not compile until somebody has decided whether it can come late.
    fn fits(&self, spec: &Spec) -> bool;

    /// Whether it can still be claimed. Cheap: it asks nobody. False once it has died while it waited.
    fn is_alive(&self) -> bool;

    /// Turns it into the sandbox that `spec` asks for.
    ///
    /// # Behavior
    /// - Everything in `spec` is applied, nothing of the template stays: limits, access, tenant, labels are the claim's.
    /// - The posture is what a create of the same spec would have given: measured after what the claim changed, if it
    ///   changed anything, and else when it was made.
    /// - Fails as a create does, with `WeakerThanAsked` where the posture falls short, and with `InvalidInput` or
    ///   `Unsupported` where the spec is refused; nothing is left behind then.
    /// - Fails for a spec that does not fit, rather than leave a word of it out.
    /// - Fails with an error that a retry can help when it has died.
    async fn claim(self: Box<Self>, spec: Spec) -> Result<Arc<dyn Sandbox>>;

    /// Ends it unused; nothing is left when this returns.
    async fn close(self: Box<Self>) -> Result<()>;
}
