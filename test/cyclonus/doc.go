// Package cyclonus compares what internal/policy compiles with cyclonus, another implementation of
// NetworkPolicy's meaning.
package cyclonus
