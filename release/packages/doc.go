// Package packages makes packages of systems, for dpkg and for rpm, of the same files.
package packages
