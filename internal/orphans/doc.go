// Package orphans reads what drivers have and what the API has, has decided what
// of it belongs to nothing, and takes volumes in again.
//
// Life cycle: a caller finds the drivers' sockets (Sockets) or names one, and
// calls Find or Adopt on a Search; each opens its connections to drivers, and has
// closed them when it returns. Find changes nothing anywhere.
package orphans
