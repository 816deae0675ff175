//! The kit that every sandbox backend must pass.
