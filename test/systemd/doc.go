// Package systemd tests the units of systemd: what they say, that volplane works under their restrictions, and
// machines that boot with them.
package systemd
