//! A deterministic backend without a wall, for tests of what uses the contract.
