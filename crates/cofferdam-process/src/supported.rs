//! The settings that the backend supports, as a check of specs.

use cofferdam_contract::{Error, NetworkPolicy, Result, Spec, SpecParts};

use crate::NAME;

/// Refuses settings that this backend does not support. Names each field of the spec: a new one must be decided on here.
pub fn check(spec: &Spec) -> Result<()> {
    spec.validate()?;
    let SpecParts { workspace, root, limits, network, tenant, labels, allow_weaker, attributes, directories } =
        spec.parts();
    // Opened and compared by the plan, which takes the limits apart.
    let (_, _, _, _) = (workspace, root, limits, directories);
    // Names for the caller, and compared with the posture.
    let (_, _, _) = (tenant, labels, allow_weaker);
    match network {
        NetworkPolicy::None => {}
        _ => {
            return Err(Error::unsupported(
                "create",
                "the process backend supports no network except a sandbox's own loopback",
            )
            .with_remedy("use --net none"));
        }
    }
    let own = attributes.keys().find(|key| key.split('.').next() == Some(NAME));
    if let Some(key) = own {
        return Err(Error::invalid("create", format!("the process backend has no attribute '{}'", key.escape_debug()))
            .with_remedy("remove it: this backend takes no attributes"));
    }
    Ok(())
}
