// Package uses follows the volumes of a Pod to what is to be mounted for it, and says
// where on the host that is.
//
// Life cycle: a Finder is made of what it reads and keeps nothing; its answers are as
// old as the caches that it asks.
package uses
