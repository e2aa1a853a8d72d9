// Package story plays scripts over a controller, in virtual time: what users, other controllers and the driver do, what
// fails, and below each command, indented by two blanks, what the controller did then. With UPDATE_GOLDEN=1 in the
// environment the indented lines are written; review the diff before you commit it.
//
// Each paragraph of a file is a test of its own, in a bubble of testing/synctest. It may begin with "# TITLE: WHY".
// Below the paragraphs a file may have objects as YAML, "-- NAME.yaml --"; several files share those in
// testdata/objects. A part of such a file that is not an object has named changes of those above it: merge patches by
// their WORDs. In a change that is made with WORD=VALUE, $ is the value. KIND is pvc, pv, sc, va, pod, node and so on
// (kinds in objects.go).
//
//	apply FILE [WORD…] [{PATCH}]; …   creates or replaces the objects of FILE.yaml, changed by words and a merge
//	                          patch; before the first process they appear to have always been there
//	patch KIND/[NS/]NAME PATCH   changes an object and its status by a merge patch
//	delete OBJECT…            deletes objects as users do; finalizers and nodes may keep them
//	drop OBJECT…              removes objects, whatever keeps them
//	written FILE …            has another controller of the process write objects, which no watch reports
//	without FILE              objects that usually exist at the start do not
//	option NAME=VALUE         an option of the controller
//	start [unordered]         has the controller work by itself
//	look KEY…                 has a controller that does not work by itself reconcile keys, one after the other
//	restart                   another process begins, which knows what the API has; one that worked is killed
//	former look KEY…          the process before the present one reconciles keys
//	kill                      kills the controller
//	pass DURATION             lets time pass
//	silence                   lets watches that begin later report nothing: caches keep what they list
//	[N|always] MATCH => EFFECT   what becomes of the next N (one) requests or calls that begin with MATCH, such as
//	                          "update persistentvolumes/status pv" or "CreateVolume pvc-1"
//	never [MATCH]             ends what such lines have begun
//	driver -Controller.Expand …   a capability that the driver does not have, or has (+)
//	driver gone, driver back  the driver leaves the set of drivers, or enters it; at the start it is there
//	driver made NAME          the driver has a volume
//	driver serves [NODE [only]] the process calls the driver for the volumes of that node, and for those of no node
//	                          unless "only" says so; or for all
//	busy N CALL NS [DRIVER]   so many calls are in flight
//	table KIND [HEADER=.json.path…]   shows all objects of a kind
//	quiet                     only tables are shown
//	unordered, ordered        what happens at the same moment is shown by its objects from now on, or as it happens
//	together                  what follows is shown below the last command, without its time
//	faults                    repeats the script once for each write and call, and for each way in which it can fail (a
//	                          write refused with a conflict; done but not answered; the controller dies before or after
//	                          it): in the end all objects must be the same. Where other writes and calls are done than
//	                          without the fault, they are shown
//
// The effect on a request is conflict, notfound, unknown if the server does not know the resource, forbidden, invalid,
// toomany, timeout, internal, another text, which is an error, or lost, which is done and not answered. The effect on a
// call is "CODE: MESSAGE", the same with "done, " before it if the driver does its work, "hang", or an answer as JSON.
// "as usual" means no effect. "do LINE" does a line of the script before what the next such line says, and "do LINE
// then EFFECT" does both. A script whose effects nothing has met fails.
//
// Shown are the requests that read, after the caches were filled, the different ones first where the controller works
// by itself; in order the writes with what they change, as words if all of a change has one, the calls with what
// differs from the usual request, and what a package notes; then the different events, with ×N if one is sent for the
// Nth time. Of a controller that works by itself, a write that met another client's is left out.
package story
