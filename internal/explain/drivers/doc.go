// Package drivers says which driver a volume or a Pod needs, where it has registered, and what is known about why it
// has not.
//
// Life cycle: its functions look up in a View and keep nothing.
package drivers
