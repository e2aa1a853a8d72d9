// Package testkit has functions for tests that wait for a condition, or need an address.
package testkit
