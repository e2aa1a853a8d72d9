// Package selinux knows the SELinux labels of files on this host.
//
// Life cycle: FileLabel has no state but what the library behind it remembers of the host: whether SELinux is enabled,
// which a running system does not change.
package selinux
