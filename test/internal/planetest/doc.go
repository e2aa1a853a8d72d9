// Package planetest starts control planes for tests, and runs scripts with the built programs.
package planetest
