//! Level 2: processes behind namespaces, mounts, filters and control groups.
