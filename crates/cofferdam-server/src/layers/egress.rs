//! The network of a sandbox in the audit log of the server.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_audit::{Log, SandboxRecord};
use cofferdam_code::NetworkLog;
use cofferdam_contract::TenantId;

use super::audit::blocking;
use crate::admission::Admission;
use crate::report;

/// The log of one sandbox's network.
pub struct EgressLog {
    /// The log of all tenants.
    pub log: Log,
    /// The quotas of audit records.
    pub admission: Arc<Admission>,
    /// The tenant of the sandbox.
    pub tenant: TenantId,
    /// The id of the sandbox, for the warning.
    pub id: String,
    /// True after the warning.
    pub has_failed: bool,
}

#[async_trait]
impl NetworkLog for EgressLog {
    /// Returns false if the log is mandatory and lacks records, or if the tenant may write no more.
    async fn write(&mut self, records: Vec<SandboxRecord>, is_lost: bool) -> bool {
        let log = self.log.clone();
        let (reason, must_end) = match blocking(move || log.record_network(records)).await {
            Ok(()) if is_lost => ("they came too fast".to_owned(), self.log.is_mandatory()),
            Ok(()) => match self.admission.audit(&self.tenant) {
                Ok(()) => return true,
                Err(error) => (error.to_string(), true),
            },
            Err(error) => (error.to_string(), self.log.is_mandatory()),
        };
        if !std::mem::replace(&mut self.has_failed, true) {
            let ends = if must_end { ", so that the sandbox loses its network" } else { "" };
            let id = &self.id;
            report::warning(&format!("the audit log cannot have all connections of the sandbox {id}{ends}: {reason}"));
        }
        !must_end
    }
}
