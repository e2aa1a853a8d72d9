// Package health asks controller plugins for the health of volumes, and writes it to the claims.
//
// Life cycle: New makes a controller; each driver that supports it is queried once a minute.
package health
