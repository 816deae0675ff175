//! The VM backend's entry in the registry.

use std::sync::Arc;

use cofferdam_contract::{Backend, Finding, Result};
use cofferdam_vm::vmm::Driver;
use cofferdam_vm::{MakePolicy, VmSettings};

use super::table::{Creation, Examination, Implementation};
use super::{Setup, vms};

pub(super) static IMPLEMENTATION: Implementation = Implementation {
    // Creating a VM takes too long.
    is_tried: false,
    // Every qualifier of the table is a VMM.
    qualified: |vmm| Setup {
        vms: VmSettings { driver: vmm.parse().ok(), ..VmSettings::default() },
        ..Setup::default()
    },
    qualifier: |setup| setup.vms.driver.filter(|driver| *driver != Driver::Auto).map(|it| it.as_str().to_owned()),
    fingerprint: |setup| Some(fingerprint(&setup.vms)),
    ..Implementation::new(create, examine)
};

/// Returns the settings in command-line options.
pub(super) fn settings(build: Option<MakePolicy>) -> VmSettings {
    VmSettings { build, ..VmSettings::default() }
}

/// Does not examine the host, which the first sandbox does.
fn create(creation: Creation<'_>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(vms::backend(&creation.setup.vms, creation.progress)?))
}

fn examine(setup: &Setup) -> Examination<'_> {
    Box::pin(async move {
        match vms::config(&setup.vms) {
            Ok(config) => cofferdam_vm::doctor(&config).await,
            Err(error) => vec![Finding::missing("configuration", &error)],
        }
    })
}

/// Includes the current content of the default image, which can be rebuilt under the same name. Only looks up its name,
/// because each run that may use a server does this.
fn fingerprint(settings: &VmSettings) -> String {
    format!("{} {:?}", settings.fingerprint(), vms::Images::usual_key(settings))
}
