// Package selinux knows the SELinux labels of files on this host.
//
// Life cycle: FileLabel has no state except that the library behind it remembers whether SELinux is enabled, which a
// running system does not change.
package selinux
