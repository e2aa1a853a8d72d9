// Package starter writes the CSI driver that authors of drivers begin with: it works, and has a test.
package starter
