// Package page tests the page of a control plane with a real browser, Debian's Chromium.
package page
