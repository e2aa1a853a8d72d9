// Package systemd tests the units of systemd: their settings, that volplane works under their restrictions, and
// machines that boot with them.
package systemd
