// Package orphans compares the volumes of drivers with those of the API, reports volumes that
// belong to nothing, and adopts volumes.
//
// Life cycle: a caller finds the drivers' sockets (Sockets) or names one, and calls Find or Adopt
// of a Search. Each call opens its connections to drivers and closes them before it returns. Find
// changes nothing.
package orphans
