// Package page looks at the page of a control plane with a real browser, Debian's Chromium.
package page
