//! System-call filters.
