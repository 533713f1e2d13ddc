#pragma once

// All of gradwire for a C++ program.

#include "gradwire/base/error.h"
#include "gradwire/comm/compressed.h"
#include "gradwire/comm/group.h"
#include "gradwire/comm/init.h"
#include "gradwire/ddp/comm_hook_type.h"
#include "gradwire/ddp/ddp.h"
#include "gradwire/ddp/join.h"
#include "gradwire/hook/powersgd_options.h"
#include "gradwire/hook/registry.h"
