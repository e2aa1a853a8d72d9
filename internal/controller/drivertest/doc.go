// Package drivertest tests controllers that call drivers by scripts, in virtual time. A script is a paragraph of a text
// file: lines that say what there is and what is done, and below each of them, indented, what the controller then did.
// With UPDATE_GOLDEN=1 in the environment the indented lines are written anew, and their difference is read before it
// is committed.
//
// A paragraph begins with "# TITLE: WHY". Its lines are:
//
//	KIND WORD…; KIND WORD…    objects that somebody writes; before the first step, objects that exist at the start
//	without KIND              an object that usually exists at the start does not
//	driver -Controller.Expand a capability that the driver does not have, or has (+)
//	driver gone, driver back  the driver leaves the set of drivers, or enters it
//	driver made NAME          the driver has a volume
//	option NAME=VALUE         an option of the controller
//	deaf                      no watch tells the controller anything
//	MATCH => EFFECT           what becomes of the next call or request that begins with MATCH, "ControllerPublishVolume"
//	                          or "update persistentvolumes pv"; "always MATCH => EFFECT" is about each, and
//	                          "never MATCH" ends it
//	look KEY…                 the controller reconciles keys, one after the other
//	former look KEY           the controller that ran before the last restart does
//	busy N CALL NAMESPACE     so many calls are in flight
//	work                      the controller works by itself from now on
//	                          and what happens at the same time is shown sorted
//	pass DURATION             time passes
//	restart                   another process begins, which knows what the API server has
//	drop RESOURCE [NS/]NAME   somebody removes an object, whatever finalizers it has
//	delete RESOURCE [NS/]NAME somebody deletes an object
//
// The effect on a call is "CODE: MESSAGE", the same with "done, " before it if the driver does its work, "hang", or an
// answer as JSON. The effect on a request is "not now", "not found", "conflict", or "lost", which is done but not
// answered. "as usual" is no effect. "do LINE" does a line of the script first, and "do LINE then EFFECT" does both.
package drivertest
