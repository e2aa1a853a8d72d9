// Package health asks the controllers of drivers how volumes are, and writes what they tell to the claims.
//
// Life cycle: New makes a controller; each driver that can be asked is asked once a minute.
package health
